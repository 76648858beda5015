(* Theorem 7.1: block verification of a chain is lossless.
   One recursion over what the code does: draft a path, test its tokens from the last one up, keep
   the path to the first that passes, draw the bonus token behind it. above k h w is the probability
   that, the path h being drafted with weight w and k tokens behind it, neither h nor one of them
   passes; runs k h w t is the probability that one does, and that the text behind h begins with t.
   The weight of a path is the probability that it is kept (kept_with_its_weight), and from the
   root, w = 1, the text is the target's (from_the_root). *)
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
Definition passes h w := if Req_EM_T (Z h w + 1 - w) 0 then 1 else Z h w / (Z h w + 1 - w).
Fixpoint above (k : nat) (h : list nat) (w : R) : R :=
  match k with
  | O => 1 - w
  | S k => sum n (fun x => q h x * above k (x :: h) (weight h w x)) * (1 - passes h w)
  end.
Fixpoint runs (k : nat) (h : list nat) (w : R) (t : list nat) : R :=
  match k, t with
  | O, [y] => w * p h y
  | S k, y :: t =>
      q h y * runs k (y :: h) (weight h w y) t
      + sum n (fun x => q h x * above k (x :: h) (weight h w x)) * passes h w
        * (left_ h w y / Z h w) * target (y :: h) t
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
Theorem kept_with_its_weight : forall k h w, 0 <= w <= 1 -> above k h w = 1 - w.
Proof.
  induction k; simpl; intros h w Hw; auto.
  assert (E : sum n (fun x => q h x * above k (x :: h) (weight h w x))
              = sum n (fun x => q h x * (1 - weight h w x))).
  { apply sum_ext; intros x _. destruct (Req_dec (q h x) 0) as [e|e]; [rewrite e; ring|].
    rewrite IHk; auto. apply weight_in; auto; lra. }
  rewrite E, ended_above by lra.
  assert (0 <= Z h w) by (apply sum_ge0; intros; apply pos_ge).
  unfold passes. destruct (Req_EM_T (Z h w + 1 - w) 0); [lra|]. field. auto.
Qed.
Theorem block_verification_is_lossless : forall k h w t,
  0 <= w <= 1 -> length t = S k -> (forall y, In y t -> (y < n)%nat) ->
  runs k h w t = w * target h t.
Proof.
  induction k; intros h w t Hw Hl Ht; destruct t as [|y t]; simpl in Hl; try discriminate.
  - destruct t; [|discriminate]. simpl. ring.
  - assert (Hy : (y < n)%nat) by (apply Ht; left; auto). simpl.
    assert (A : sum n (fun x => q h x * above k (x :: h) (weight h w x)) = Z h w + 1 - w).
    { rewrite <- ended_above by lra. apply sum_ext; intros x _.
      destruct (Req_dec (q h x) 0) as [e|e]; [rewrite e; ring|].
      rewrite kept_with_its_weight; [reflexivity|apply weight_in; auto; lra]. }
    rewrite A.
    assert (B : q h y * runs k (y :: h) (weight h w y) t
                = Rmin (w * p h y) (q h y) * target (y :: h) t).
    { rewrite <- weighed by lra.
      destruct (Req_dec (q h y) 0) as [e|e]; [rewrite e; ring|].
      rewrite IHk; [ring|apply weight_in; auto; lra|lia|intros; apply Ht; right; auto]. }
    rewrite B.
    assert (0 <= Z h w) by (apply sum_ge0; intros; apply pos_ge).
    assert (C : (Z h w + 1 - w) * passes h w * (left_ h w y / Z h w) = left_ h w y).
    { unfold passes. destruct (Req_dec (Z h w) 0) as [e|e].
      - assert (left_ h w y = 0) by (apply (sum_zero n (left_ h w)); auto; intros; apply pos_ge).
        rewrite H0. unfold Rdiv. ring.
      - destruct (Req_EM_T (Z h w + 1 - w) 0); [exfalso; lra|]. field. split; auto. }
    rewrite C. unfold left_ in *. pose proof (split (w * p h y) (q h y)).
    transitivity ((Rmin (w * p h y) (q h y) + pos (w * p h y - q h y)) * target (y :: h) t);
      [ring|]. rewrite H0. ring.
Qed.
Theorem from_the_root : forall k t,
  length t = S k -> (forall y, In y t -> (y < n)%nat) ->
  runs k [] 1 t = target [] t /\ above k [] 1 = 0.
Proof.
  intros. rewrite block_verification_is_lossless, kept_with_its_weight by (auto; lra). split; ring.
Qed.
End Block.
