(* One draft: theorems 1.1 (lossless), 2.1 (acceptance is 1 - TV) and 2.2 (no lossless rule accepts
   more). *)
Require Import Reals Lra Lia List.
Require Import Sums.
Open Scope R_scope.

Section One.
Variable n : nat.
Variables p q : nat -> R.
Hypothesis p0 : forall x, 0 <= p x.
Hypothesis q0 : forall x, 0 <= q x.
Hypothesis p1 : sum n p = 1.
Hypothesis q1 : sum n q = 1.
Definition tv := sum n (fun x => Rabs (p x - q x)) / 2.
Definition beta := sum n (fun x => Rmin (p x) (q x)).
Definition res := sum n (fun y => pos (p y - q y)).
(* The probability that x passes the test u q(x) < p(x), u being uniform. *)
Definition acc x := ratio (p x) (q x).
(* The distribution of the bonus token, and of the output: accepted, or the bonus token. *)
Definition closing y := if Req_EM_T res 0 then p y else pos (p y - q y) / res.
Definition out y := q y * acc y + sum n (fun x => q x * (1 - acc x)) * closing y.

(* x is drawn and accepted with min(p, q), in all with beta, and the rest is the residual. *)
Lemma drawn x : q x * acc x = Rmin (p x) (q x).
Proof. apply drawn_and_accepted; auto. Qed.
Lemma acceptance : sum n (fun x => q x * acc x) = beta.
Proof. apply sum_ext; intros; apply drawn. Qed.
Lemma rejection : sum n (fun x => q x * (1 - acc x)) = res.
Proof.
  unfold res. rewrite <- rejected_mass by auto. apply sum_ext; intros. rewrite <- drawn. ring.
Qed.
Theorem acceptance_is_one_minus_tv : sum n (fun x => q x * acc x) = 1 - tv.
Proof.
  rewrite acceptance. unfold tv, beta.
  rewrite (sum_ext n (fun x => Rabs (p x - q x)) (fun x => p x + q x + Rmin (p x) (q x) * -2)).
  - rewrite !sum_plus, sum_scal, p1, q1. lra.
  - intros; rewrite abs_split; lra.
Qed.
Theorem lossless : forall y, (y < n)%nat -> out y = p y.
Proof.
  intros y Hy. unfold out. rewrite drawn, rejection. pose proof (split (p y) (q y)).
  unfold closing. destruct (Req_EM_T res 0) as [e|e].
  - assert (pos (p y - q y) = 0).
    { apply (sum_zero n (fun y => pos (p y - q y))); auto. intros; apply pos_ge. }
    rewrite e. lra.
  - replace (res * (pos (p y - q y) / res)) with (pos (p y - q y)) by (field; auto). lra.
Qed.

(* Theorem 2.2: no lossless rule accepts more. A rule is a joint distribution J of the draft x and
   the output y, with the marginals q and p; the draft is accepted where y = x. *)
Variable J : nat -> nat -> R.
Hypothesis J0 : forall x y, 0 <= J x y.
Hypothesis Jq : forall x, (x < n)%nat -> sum n (J x) = q x.
Hypothesis Jp : forall y, (y < n)%nat -> sum n (fun x => J x y) = p y.
Theorem optimal : sum n (fun x => J x x) <= sum n (fun x => q x * acc x).
Proof.
  rewrite acceptance. apply sum_le; intros x Hx. apply Rmin_glb.
  - rewrite <- Jp by auto. apply (one_le n (fun z => J z x)); auto.
  - rewrite <- Jq by auto. apply (one_le n (J x)); auto.
Qed.
End One.
