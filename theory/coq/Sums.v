(* Sums over the tokens 0 .. n-1, positive parts, and texts: what the proofs here share. *)
Require Import Reals Lra Lia List.
Import ListNotations.
Open Scope R_scope.

Fixpoint sum (n : nat) (f : nat -> R) : R :=
  match n with O => 0 | S m => sum m f + f m end.
Definition pos (x : R) := Rmax x 0.

Lemma split a b : Rmin a b + pos (a - b) = a.
Proof. unfold pos, Rmin, Rmax. destruct (Rle_dec a b), (Rle_dec (a - b) 0); lra. Qed.
Lemma abs_split a b : Rabs (a - b) = a + b - 2 * Rmin a b.
Proof. unfold Rmin, Rabs. destruct (Rle_dec a b), (Rcase_abs (a - b)); lra. Qed.
Lemma pos_ge x : 0 <= pos x.
Proof. unfold pos; apply Rmax_r. Qed.
Lemma pos_mono x y : x <= y -> pos x <= pos y.
Proof. unfold pos, Rmax. destruct (Rle_dec x 0), (Rle_dec y 0); lra. Qed.
Lemma pos_nest a b : 0 <= b -> pos (pos a - b) = pos (a - b).
Proof.
  unfold pos, Rmax. destruct (Rle_dec a 0).
  destruct (Rle_dec (0 - b) 0), (Rle_dec (a - b) 0); lra. destruct (Rle_dec (a - b) 0); lra.
Qed.
Lemma pos_scale a m : 0 < m -> pos (a / m) = pos a / m.
Proof.
  intros H. unfold pos, Rmax, Rdiv. assert (0 < / m) by (apply Rinv_0_lt_compat; auto).
  destruct (Rle_dec a 0), (Rle_dec (a * / m) 0).
  ring. exfalso; apply n. nra.
  exfalso. assert (0 < a * / m) by (apply Rmult_lt_0_compat; lra). lra. auto.
Qed.

Lemma sum_ext n f g : (forall y, (y < n)%nat -> f y = g y) -> sum n f = sum n g.
Proof. induction n; simpl; intros; auto. rewrite IHn; [rewrite H; auto|]; intros; auto. Qed.
Lemma sum_plus n f g : sum n (fun y => f y + g y) = sum n f + sum n g.
Proof. induction n; simpl; lra. Qed.
Lemma sum_scal n c f : sum n (fun y => f y * c) = sum n f * c.
Proof. induction n; simpl; lra. Qed.
Lemma sum_first n f : sum (S n) f = f O + sum n (fun y => f (S y)).
Proof. induction n; simpl in *; lra. Qed.
Lemma sum_le n f g : (forall y, (y < n)%nat -> f y <= g y) -> sum n f <= sum n g.
Proof.
  induction n; simpl; intros; [lra|].
  assert (sum n f <= sum n g) by (apply IHn; intros; apply H; lia).
  specialize (H n ltac:(lia)). lra.
Qed.
Lemma sum_const0 n : sum n (fun _ => 0) = 0.
Proof. induction n; simpl; lra. Qed.
Lemma sum_ge0 n f : (forall y, (y < n)%nat -> 0 <= f y) -> 0 <= sum n f.
Proof. intros. rewrite <- (sum_const0 n). apply sum_le; auto. Qed.
Lemma sum_zero n f : (forall y, 0 <= f y) -> sum n f = 0 -> forall y, (y < n)%nat -> f y = 0.
Proof.
  induction n; simpl; intros H E y Hy; [lia|].
  assert (0 <= sum n f) by (apply sum_ge0; auto). pose proof (H n).
  destruct (Nat.eq_dec y n); [subst; lra|]. apply IHn; auto; [lra|lia].
Qed.
Lemma sum_pick n y (f : nat -> R) :
  (y < n)%nat -> sum n (fun x => if Nat.eqb x y then f x else 0) = f y.
Proof.
  induction n; simpl; intros; [lia|]. destruct (Nat.eq_dec y n).
  - subst. rewrite Nat.eqb_refl.
    assert (sum n (fun x => if Nat.eqb x n then f x else 0) = 0).
    { transitivity (sum n (fun _ => 0)); [|apply sum_const0].
      apply sum_ext; intros. destruct (Nat.eqb_spec y n); [lia|auto]. }
    lra.
  - rewrite IHn by lia. destruct (Nat.eqb_spec n y); [lia|lra].
Qed.
Lemma one_le n (f : nat -> R) y : (forall x, 0 <= f x) -> (y < n)%nat -> f y <= sum n f.
Proof.
  induction n; simpl; intros H Hy; [lia|]. destruct (Nat.eq_dec y n).
  { subst. assert (0 <= sum n f) by (apply sum_ge0; auto). lra. }
  specialize (IHn H ltac:(lia)). specialize (H n). lra.
Qed.
(* The probability that a uniform u has u * b < a: min(1, a / b); 1 for a / 0, 0 for 0 / 0. *)
Definition ratio (a b : R) := if Rlt_dec b a then 1 else a / b.
Lemma ratio_in a b : 0 <= a -> 0 <= b -> 0 <= ratio a b <= 1.
Proof.
  intros Ha Hb. unfold ratio. destruct (Rlt_dec b a); [lra|].
  destruct (Req_dec b 0); [replace a with 0 by lra; unfold Rdiv; lra|].
  assert (0 < / b) by (apply Rinv_0_lt_compat; lra). split; [apply Rmult_le_pos; lra|].
  apply Rmult_le_reg_r with b; [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l; lra.
Qed.
(* A token of draft probability b is drawn and accepted with min(a, b). *)
Lemma drawn_and_accepted a b : 0 <= a -> 0 <= b -> b * ratio a b = Rmin a b.
Proof.
  intros Ha Hb. unfold ratio, Rmin. destruct (Rlt_dec b a), (Rle_dec a b); try lra.
  destruct (Req_dec b 0); [subst; lra|]. field. auto.
Qed.
(* What a test leaves: with P and d of mass 1 the weights that are rejected sum to the residual. *)
Lemma rejected_mass n (P d : nat -> R) : sum n P = 1 -> sum n d = 1 ->
  sum n (fun x => d x - Rmin (P x) (d x)) = sum n (fun y => pos (P y - d y)).
Proof.
  intros. assert (sum n (fun x => Rmin (P x) (d x)) + sum n (fun y => pos (P y - d y)) = sum n P).
  { rewrite <- sum_plus. apply sum_ext; intros. apply split. }
  assert (sum n (fun x => d x - Rmin (P x) (d x)) + sum n (fun x => Rmin (P x) (d x)) = sum n d).
  { rewrite <- sum_plus. apply sum_ext; intros. lra. }
  lra.
Qed.

(* The probability of the text t after h, token by token from d. What comes before, h, stands with
   its newest token first, what follows, t, with its first token first; so everywhere here. *)
Fixpoint along (d : list nat -> nat -> R) (h t : list nat) : R :=
  match t with [] => 1 | y :: t => d h y * along d (y :: h) t end.
