(* Theorem 7.1: block verification of a chain is lossless.
   E k h w t is the probability that, given the drafted path h with weight w, verification ends at
   its last token or below and the text goes on with t, k further tokens having been drafted. It is
   w times the target's probability of t, and at the root w = 1. In the definition a child is left
   with 1 minus its weight: that this is the probability of ending above it is kept_with_its_weight,
   where verification ends at the last token i with u_i < h_i. *)
Require Import Reals Lra Lia List.
Require Import Sums.
Import ListNotations.
Open Scope R_scope.

Section Block.
Variable n : nat.
Variables p q : list nat -> nat -> R.
Hypothesis p0 : forall h x, 0 <= p h x.
Hypothesis q0 : forall h x, 0 <= q h x.
Hypothesis p1 : forall h, sum n (p h) = 1.
Hypothesis q1 : forall h, sum n (q h) = 1.

Fixpoint target (h t : list nat) : R :=
  match t with [] => 1 | y :: t => p h y * target (y :: h) t end.
Definition weight h w x := Rmin 1 (w * p h x / q h x).
Definition left_ h w y := pos (w * p h y - q h y).
Definition Z h w := sum n (left_ h w).
Definition stop h w := Z h w / (Z h w + 1 - w).
Definition bonus h w y := left_ h w y / Z h w.
Fixpoint E (k : nat) (h : list nat) (w : R) (t : list nat) : R :=
  match k, t with
  | O, [y] => w * p h y
  | S k, y :: t =>
      q h y * E k (y :: h) (weight h w y) t
      + sum n (fun x => q h x * (1 - weight h w x)) * (stop h w * bonus h w y * target (y :: h) t)
  | _, _ => 0
  end.

Lemma weighed h w x : 0 <= w -> q h x * weight h w x = Rmin (w * p h x) (q h x).
Proof.
  intros Hw. unfold weight. pose proof (p0 h x). pose proof (q0 h x).
  assert (0 <= w * p h x) by (apply Rmult_le_pos; auto).
  destruct (Req_dec (q h x) 0) as [e|e].
  - rewrite e, Rmult_0_l. unfold Rmin. destruct (Rle_dec (w * p h x) 0); lra.
  - assert (0 < q h x) by lra.
    assert (Ex : q h x * (w * p h x / q h x) = w * p h x) by (field; lra).
    unfold Rmin. destruct (Rle_dec 1 (w * p h x / q h x)), (Rle_dec (w * p h x) (q h x)); try lra.
    + assert (q h x * 1 <= q h x * (w * p h x / q h x)) by (apply Rmult_le_compat_l; lra). lra.
    + assert (q h x * (w * p h x / q h x) < q h x * 1) by (apply Rmult_lt_compat_l; lra). lra.
Qed.
Lemma weight_in h w x : 0 <= w -> 0 <= q h x -> q h x <> 0 -> 0 <= weight h w x <= 1.
Proof.
  intros Hw Hq e. unfold weight. split; [|apply Rmin_l]. apply Rmin_glb; [lra|].
  unfold Rdiv. apply Rmult_le_pos; [apply Rmult_le_pos; auto|].
  left; apply Rinv_0_lt_compat; lra.
Qed.
Lemma ended_above h w : 0 <= w -> sum n (fun x => q h x * (1 - weight h w x)) = Z h w + 1 - w.
Proof.
  intros Hw.
  assert (A : sum n (fun x => q h x * (1 - weight h w x))
              + sum n (fun x => Rmin (w * p h x) (q h x)) = 1).
  { transitivity (sum n (q h)); [|apply q1]. rewrite <- sum_plus. apply sum_ext; intros.
    rewrite <- weighed by auto. ring. }
  assert (B : sum n (fun x => Rmin (w * p h x) (q h x)) + Z h w = w).
  { unfold Z. rewrite <- sum_plus. transitivity (sum n (fun x => p h x * w)).
    apply sum_ext; intros. unfold left_. rewrite split. ring. rewrite sum_scal, p1. ring. }
  lra.
Qed.
Lemma residual h w y : 0 <= w <= 1 -> (y < n)%nat ->
  (Z h w + 1 - w) * (stop h w * bonus h w y) = left_ h w y.
Proof.
  intros Hw Hy. unfold stop, bonus.
  assert (0 <= Z h w) by (apply sum_ge0; intros; apply pos_ge).
  destruct (Req_dec (Z h w) 0) as [e|e].
  - assert (left_ h w y = 0) by (apply (sum_zero n (left_ h w)); auto; intros; apply pos_ge).
    rewrite H0, e. unfold Rdiv. ring.
  - field. split; lra.
Qed.

Theorem block_verification_is_lossless : forall k h w t,
  0 <= w <= 1 -> length t = S k -> (forall y, In y t -> (y < n)%nat) -> E k h w t = w * target h t.
Proof.
  induction k; intros h w t Hw Hl Ht; destruct t as [|y t]; simpl in Hl; try discriminate.
  - destruct t; [|discriminate]. simpl. ring.
  - assert (Hy : (y < n)%nat) by (apply Ht; left; auto).
    simpl. rewrite ended_above by lra.
    assert (A : q h y * E k (y :: h) (weight h w y) t
                = q h y * weight h w y * target (y :: h) t).
    { destruct (Req_dec (q h y) 0) as [e|e]; [rewrite e; ring|].
      rewrite IHk; [ring|apply weight_in; auto; lra|lia|intros; apply Ht; right; auto]. }
    rewrite A, weighed by lra. pose proof (residual h w y Hw Hy).
    pose proof (split (w * p h y) (q h y)).
    unfold left_ in H.
    transitivity ((Rmin (w * p h y) (q h y)
                   + (Z h w + 1 - w) * (stop h w * bonus h w y)) * target (y :: h) t); [ring|].
    rewrite H, H0. ring.
Qed.
Theorem from_the_root : forall k t,
  length t = S k -> (forall y, In y t -> (y < n)%nat) -> E k [] 1 t = target [] t.
Proof. intros. rewrite block_verification_is_lossless; auto; lra. Qed.
(* The probability of ending at the last token of h or below: below, or else u_i < h_i. *)
Definition stops h w := if Req_EM_T (Z h w + 1 - w) 0 then 1 else Z h w / (Z h w + 1 - w).
Fixpoint at_least (k : nat) (h : list nat) (w : R) : R :=
  match k with
  | O => w
  | S k => let a := sum n (fun x => q h x * at_least k (x :: h) (weight h w x)) in
           a + (1 - a) * stops h w
  end.
Theorem kept_with_its_weight : forall k h w, 0 <= w <= 1 -> at_least k h w = w.
Proof.
  induction k; intros h w Hw; simpl; auto.
  assert (E1 : sum n (fun x => q h x * at_least k (x :: h) (weight h w x))
               = sum n (fun x => q h x * weight h w x)).
  { apply sum_ext; intros x _. destruct (Req_dec (q h x) 0) as [e|e]; [rewrite e; ring|].
    rewrite IHk; auto. apply weight_in; auto; lra. }
  rewrite E1. pose proof (ended_above h w ltac:(lra)) as A.
  assert (B : sum n (fun x => q h x * (1 - weight h w x))
              + sum n (fun x => q h x * weight h w x) = 1).
  { rewrite <- sum_plus. transitivity (sum n (q h)); [|apply q1]. apply sum_ext; intros; ring. }
  replace (sum n (fun x => q h x * weight h w x)) with (w - Z h w) by lra.
  assert (0 <= Z h w) by (apply sum_ge0; intros; apply pos_ge).
  unfold stops. destruct (Req_EM_T (Z h w + 1 - w) 0); [lra|]. field. auto.
Qed.
End Block.
