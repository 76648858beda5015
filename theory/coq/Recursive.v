(* Theorems 4.1 and 4.2: recursive rejection outputs p exactly, whatever the history-dependent law
  of
   the candidates is: draws with replacement, without, or any other. *)
Require Import Reals Lra Lia List.
Require Import Sums.
Open Scope R_scope.

Section RRS.
Variable n : nat.
Variable q : list nat -> nat -> R.                   (* law of the next candidate given what was
  rejected *)
Hypothesis q0 : forall h x, 0 <= q h x.
Hypothesis q1 : forall h, sum n (q h) = 1.
Definition res h p := sum n (fun y => pos (p y - q h y)).
Definition next h p := fun y => if Req_EM_T (res h p) 0 then p y else pos (p y - q h y) / res h p.
(* probability that y comes out when k further candidates may be tested: draw x ~ q h; mass
  min(p,q)(x) is accepted, the rest is rejected *)
Fixpoint out (k:nat) (h:list nat) (p:nat->R) (y:nat) : R :=
  match k with
  | O => p y
  | S k => sum n (fun x => (if Nat.eqb x y then Rmin (p x) (q h x) else 0)
                           + (q h x - Rmin (p x) (q h x)) * out k (x::h) (next h p) y)
  end.
Lemma rejected h p : sum n p = 1 -> sum n (fun x => q h x - Rmin (p x) (q h x)) = res h p.
Proof. intros. assert (sum n (fun x => Rmin (p x) (q h x)) + res h p = sum n p).
  { unfold res. rewrite <- sum_plus. apply sum_ext; intros. apply split. }
  assert (sum n (fun x => q h x - Rmin (p x) (q h x)) + sum n (fun x => Rmin (p x) (q h x)) = sum n
    (q h)).
  { rewrite <- sum_plus. apply sum_ext; intros. lra. } rewrite q1 in H1. lra. Qed.
Lemma next1 h p : sum n p = 1 -> sum n (next h p) = 1.
Proof. unfold next. destruct (Req_EM_T (res h p) 0); intros; auto. unfold Rdiv. rewrite sum_scal.
  unfold res. field. exact n0. Qed.
Theorem lossless : forall k h p y, sum n p = 1 -> (y<n)%nat -> out k h p y = p y.
Proof.
  induction k; simpl; intros h p y Hp Hy; auto.
  rewrite (sum_ext n _ (fun x => (if Nat.eqb x y then Rmin (p x) (q h x) else 0) + (q h x - Rmin (p
    x) (q h x)) * next h p y)).
  2:{ intros. rewrite IHk; auto. apply next1; auto. }
  rewrite sum_plus, sum_scal, rejected by auto. rewrite (sum_pick n y (fun x => Rmin (p x) (q h
    x))) by auto.
  pose proof (split (p y) (q h y)). unfold next. destruct (Req_EM_T (res h p) 0).
  - assert (pos (p y - q h y) = 0). { apply (sum_zero n (fun y => pos (p y - q h y))); auto.
    intros; apply pos_ge. } rewrite e. lra.
  - replace (res h p * (pos (p y - q h y) / res h p)) with (pos (p y - q h y)) by (field; auto).
    lra.
Qed.
End RRS.
