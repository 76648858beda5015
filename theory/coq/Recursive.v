(* Theorems 4.1 and 4.2: recursive rejection at one node, for every way of drawing the candidates.

   Candidates are drawn one after another, with replacement, without, or in any other way: q ds is
   the distribution of the next one given those before it, ds, the newest first. All functions of ds
   suppose that all of ds are tested in drawing order. *)
Require Import Reals Lra Lia List Bool.
Require Import Sums.
Import ListNotations.
Open Scope R_scope.

Section Recursive.
Variable n : nat.
Variable p : nat -> R.
Variable q : list nat -> nat -> R.
Hypothesis p0 : forall x, 0 <= p x.
Hypothesis p1 : sum n p = 1.
Hypothesis q0 : forall ds x, 0 <= q ds x.
Hypothesis q1 : forall ds, sum n (q ds) = 1.

Definition residual_mass (P d : nat -> R) := sum n (fun y => pos (P y - d y)).
(* norm((P - d)+); P where nothing is left, which is never reached. *)
Definition residual P d y :=
  if Req_EM_T (residual_mass P d) 0 then P y else pos (P y - d y) / residual_mass P d.
(* The target of the next test, after ds have been rejected. *)
Fixpoint left_ ds :=
  match ds with [] => p | _ :: ds => residual (left_ ds) (q ds) end.
(* The probability that a further candidate d passes its test. *)
Definition passes ds d := ratio (left_ ds d) (q ds d).
(* The probability that all of ds are rejected. *)
Fixpoint rejects ds :=
  match ds with [] => 1 | d :: ds => rejects ds * (1 - passes ds d) end.
(* The probability that the token y is accepted, and that it is the bonus token. *)
Fixpoint accepts ds y :=
  match ds with
  | [] => 0
  | d :: ds => accepts ds y + if Nat.eqb d y then rejects ds * passes ds d else 0
  end.
Definition ends ds y := rejects ds * left_ ds y.
Definition drawn ds y := existsb (fun d => Nat.eqb d y) ds.

Lemma residual_ge P d y : (forall x, 0 <= P x) -> 0 <= residual P d y.
Proof.
  intros HP. unfold residual. destruct (Req_EM_T (residual_mass P d) 0); auto.
  assert (0 <= residual_mass P d) by (apply sum_ge0; intros; apply pos_ge).
  apply Rmult_le_pos; [apply pos_ge|left; apply Rinv_0_lt_compat; lra].
Qed.
Lemma left_ge ds : forall y, 0 <= left_ ds y.
Proof. induction ds; simpl; auto. intros. now apply residual_ge. Qed.
Lemma left_mass ds : sum n (left_ ds) = 1.
Proof.
  induction ds as [|d ds IH]; simpl; auto. unfold residual.
  destruct (Req_EM_T (residual_mass (left_ ds) (q ds)) 0); auto.
  unfold Rdiv. rewrite sum_scal. fold (residual_mass (left_ ds) (q ds)). field. auto.
Qed.

(* Only candidates are accepted. *)
Lemma only_candidates ds y : drawn ds y = false -> accepts ds y = 0.
Proof.
  induction ds as [|d ds IH]; simpl; auto. destruct (Nat.eqb d y); [discriminate|].
  intros E. rewrite IH by auto. ring.
Qed.
(* A token that has been rejected has no mass left. *)
Lemma rejected_token ds y : (y < n)%nat -> drawn ds y = true ->
  rejects ds = 0 \/ left_ ds y = 0.
Proof.
  intros Hy. induction ds as [|d ds IH]; simpl; [discriminate|]. intros E.
  set (P := left_ ds) in *. set (c := q ds).
  assert (HP : forall x, 0 <= P x) by (intros; apply left_ge).
  destruct (drawn ds y) eqn:F.
  - destruct IH as [IH|IH]; auto; [left; rewrite IH; ring|right]. unfold residual.
    destruct (Req_EM_T (residual_mass P c) 0); auto. rewrite IH. unfold pos, Rmax, c.
    pose proof (q0 ds y). destruct (Rle_dec (0 - q ds y) 0); unfold Rdiv; lra.
  - rewrite orb_false_r in E. apply Nat.eqb_eq in E. subst d.
    unfold passes, ratio. fold P c. destruct (Rlt_dec (c y) (P y)); [left; ring|].
    unfold residual. destruct (Req_EM_T (residual_mass P c) 0) as [e|e].
    + assert (Hc : c y - Rmin (P y) (c y) = 0).
      { apply (sum_zero n (fun x => c x - Rmin (P x) (c x))); auto.
        - intros x. pose proof (Rmin_r (P x) (c x)). lra.
        - rewrite rejected_mass; [exact e|apply left_mass|apply q1]. }
      rewrite Rmin_left in Hc by lra. destruct (Req_dec (P y) 0) as [z|z]; auto.
      left. replace (c y) with (P y) by lra. field. auto.
    + right. unfold pos. rewrite Rmax_right by lra. unfold Rdiv. ring.
Qed.
(* Whether a candidate is accepted does not depend on later draws: a repetition never is. *)
Lemma later_draws ds d y :
  (y < n)%nat -> drawn ds y = true -> accepts (d :: ds) y = accepts ds y.
Proof.
  intros Hy E. simpl. destruct (Nat.eqb_spec d y) as [->|_]; [|ring].
  destruct (rejected_token ds y Hy E) as [H|H]; [rewrite H; ring|].
  unfold passes. rewrite H. unfold ratio, Rdiv. pose proof (q0 ds y).
  destruct (Rlt_dec (q ds y) 0); [lra|ring].
Qed.
(* A further draw does not change the distribution of the token after the node. *)
Lemma fair ds y : (y < n)%nat ->
  sum n (fun d => q ds d * (accepts (d :: ds) y + ends (d :: ds) y)) = accepts ds y + ends ds y.
Proof.
  intros Hy. unfold ends. simpl. set (P := left_ ds). set (c := q ds). set (r := residual P c).
  rewrite (sum_ext n _ (fun d => c d * accepts ds y
    + (if Nat.eqb d y then rejects ds * Rmin (P d) (c d) else 0)
    + (c d - Rmin (P d) (c d)) * (rejects ds * r y))).
  2:{ intros d _. rewrite <- drawn_and_accepted by (apply left_ge || apply q0).
      unfold passes. fold P c. destruct (Nat.eqb d y); ring. }
  rewrite !sum_plus, !sum_scal, (sum_pick n y (fun d => rejects ds * Rmin (P d) (c d))) by auto.
  rewrite rejected_mass by (apply left_mass || apply q1). fold (residual_mass P c).
  replace (sum n c) with 1 by (symmetry; apply q1).
  assert (E : residual_mass P c * r y = pos (P y - c y)).
  { unfold r, residual. destruct (Req_EM_T (residual_mass P c) 0) as [e|e]; [|field; auto].
    rewrite e, Rmult_0_l. symmetry. apply (sum_zero n (fun x => pos (P x - c x))); auto.
    intros; apply pos_ge. }
  pose proof (split (P y) (c y)).
  replace (residual_mass P c * (rejects ds * r y)) with (rejects ds * pos (P y - c y))
    by (rewrite <- E; ring).
  replace (P y) with (Rmin (P y) (c y) + pos (P y - c y)) at 3 by lra. ring.
Qed.

(* The mean of f over the candidates: at most k, fewer where stop says so (q run out of tokens). *)
Fixpoint mean (stop : list nat -> bool) (k : nat) (ds : list nat) (f : list nat -> R) : R :=
  match k with
  | O => f ds
  | S k => if stop ds then f ds else sum n (fun d => q ds d * mean stop k (d :: ds) f)
  end.
(* Theorems 4.1 and 4.2: the output has the distribution p. *)
Theorem lossless : forall stop k y, (y < n)%nat ->
  mean stop k [] (fun ds => accepts ds y + ends ds y) = p y.
Proof.
  intros stop k y Hy. replace (p y) with (accepts [] y + ends [] y) by (unfold ends; simpl; ring).
  generalize (@nil nat). induction k as [|k IH]; intros ds; simpl; auto.
  destruct (stop ds); auto. rewrite <- fair by auto. apply sum_ext; intros. now rewrite IH.
Qed.

(* The targets of the successive tests where every candidate is drawn from c, and the probability
   that the next one is accepted. *)
Fixpoint nth_target (c : nat -> R) (j : nat) :=
  match j with O => p | S j => residual (nth_target c j) c end.
Definition beta c j := sum n (fun x => Rmin (nth_target c j x) (c x)).
Fixpoint product (f : nat -> R) (first k : nat) : R :=
  match k with O => 1 | S k => f first * product f (S first) k end.
(* Theorem 4.1: k independent candidates are all rejected with the product of the 1 - beta. *)
Theorem all_rejected : forall c k, (forall ds, q ds = c) ->
  mean (fun _ => false) k [] rejects = product (fun j => 1 - beta c j) 0 k.
Proof.
  intros c k Hq.
  assert (L : forall ds, left_ ds = nth_target c (length ds)).
  { induction ds as [|d ds IH]; simpl; auto. now rewrite IH, Hq. }
  assert (M : forall ds, mean (fun _ => false) k ds rejects
              = rejects ds * product (fun j => 1 - beta c j) (length ds) k).
  { induction k as [|k IH]; intros ds; simpl; [ring|].
    set (f := product (fun j => 1 - beta c j) (S (length ds)) k).
    rewrite (sum_ext n _ (fun d => q ds d * (rejects ds * f)
      + Rmin (left_ ds d) (q ds d) * (- (rejects ds * f)))).
    - rewrite sum_plus, !sum_scal, q1. unfold beta. rewrite <- L, Hq. ring.
    - intros d _. rewrite IH. simpl. fold f. unfold passes.
      rewrite <- drawn_and_accepted by (apply left_ge || apply q0). ring. }
  rewrite M. simpl. ring.
Qed.
End Recursive.
