(* Theorem 5.1, upper half: no lossless rule accepts more often than
   1 + min over S of (p(S) - P(all drafts in S)), whatever the distribution of the drafts is.
   Theorem 5.9.1: drafts without replacement lie in S at most as often as independent ones, for
   every S, so that their optimum is at least as large. *)
Require Import Reals Lra Lia List.
Require Import Sums.
Open Scope R_scope.

Definition ind (b : bool) : R := if b then 1 else 0.
Lemma ind_ge b : 0 <= ind b.
Proof. destruct b; simpl; lra. Qed.

Section Upper.
Variables n m : nat.                 (* tokens; drafts, each a set of candidates *)
Variable Q : nat -> R.               (* law of the drafts *)
Variable p : nat -> R.
Variable mem : nat -> nat -> bool.   (* whether draft d has candidate y *)
Variable J : nat -> nat -> R.        (* a rule: joint law of draft and output *)
Hypothesis J0 : forall d y, 0 <= J d y.
Hypothesis JQ : forall d, (d < m)%nat -> sum n (J d) = Q d.
Hypothesis Jp : forall y, (y < n)%nat -> sum m (fun d => J d y) = p y.
Hypothesis Q1 : sum m Q = 1.
Variable S : nat -> bool.
Variable inside : nat -> bool.       (* whether all candidates of draft d lie in S *)
Hypothesis inside_S : forall d y, inside d = true -> mem d y = true -> S y = true.

Lemma swap k l (f : nat -> nat -> R) :
  sum k (fun d => sum l (f d)) = sum l (fun y => sum k (fun d => f d y)).
Proof.
  induction k; simpl. symmetry; apply sum_const0.
  rewrite IHk, <- sum_plus. reflexivity.
Qed.

Definition accepted := sum m (fun d => sum n (fun y => J d y * ind (mem d y))).

Theorem accepted_at_most :
  accepted <= sum n (fun y => p y * ind (S y)) + 1 - sum m (fun d => Q d * ind (inside d)).
Proof.
  assert (A : accepted <= sum m (fun d => sum n (fun y => J d y * ind (S y)))
                          + sum m (fun d => sum n (fun y => J d y * (1 - ind (inside d))))).
  { unfold accepted. rewrite <- sum_plus. apply sum_le; intros d Hd.
    rewrite <- sum_plus. apply sum_le; intros y Hy. pose proof (J0 d y).
    pose proof (inside_S d y). destruct (mem d y), (inside d), (S y); simpl in *; try lra;
      discriminate (H0 eq_refl eq_refl). }
  assert (B : sum m (fun d => sum n (fun y => J d y * ind (S y)))
              = sum n (fun y => p y * ind (S y))).
  { rewrite swap. apply sum_ext; intros y Hy. rewrite sum_scal, Jp; auto. }
  assert (C : sum m (fun d => sum n (fun y => J d y * (1 - ind (inside d))))
              = 1 - sum m (fun d => Q d * ind (inside d))).
  { rewrite (sum_ext m _ (fun d => Q d + Q d * ind (inside d) * -1)).
    rewrite sum_plus, sum_scal, Q1. lra.
    intros d Hd. rewrite sum_scal, JQ by auto. lra. }
  lra.
Qed.
End Upper.

Section Without.
Variable n : nat.
Variable q : nat -> R.
Variable S : nat -> bool.
Hypothesis q0 : forall x, 0 <= q x.
Hypothesis q1 : sum n q = 1.
Definition inb (x : nat) (h : list nat) := if in_dec Nat.eq_dec x h then true else false.
Definition off (h : list nat) x := if inb x h then 0 else q x.
Definition mass h := sum n (off h).
Definition s := sum n (fun x => q x * ind (S x)).
(* probability that k further draws without replacement, h being drawn, all lie in S; where the
   support of q is exhausted there are none *)
Fixpoint in_S (k : nat) (h : list nat) : R :=
  match k with
  | O => 1
  | Datatypes.S k => if Req_EM_T (mass h) 0 then 1
                     else sum n (fun x => off h x / mass h * ind (S x) * in_S k (x :: h))
  end.

Lemma off_ge h x : 0 <= off h x.
Proof. unfold off. pose proof (q0 x). destruct (inb x h); lra. Qed.
Lemma off_le h x : off h x <= q x.
Proof. unfold off. pose proof (q0 x). destruct (inb x h); lra. Qed.
Lemma mass_le h : mass h <= 1.
Proof. rewrite <- q1. apply sum_le; intros; apply off_le. Qed.
Lemma mass_ge h : 0 <= mass h.
Proof. apply sum_ge0; intros; apply off_ge. Qed.
Lemma s_ge : 0 <= s.
Proof. apply sum_ge0; intros. apply Rmult_le_pos; auto; apply ind_ge. Qed.
Lemma s_le : s <= 1.
Proof.
  rewrite <- q1. apply sum_le; intros x _. pose proof (q0 x). destruct (S x); simpl; lra.
Qed.

Lemma left_in_S h : (forall x, In x h -> S x = true) ->
  sum n (fun x => off h x * ind (S x)) = mass h - (1 - s).
Proof.
  intros Hh. unfold s. rewrite <- q1.
  assert (sum n (fun x => off h x * ind (S x)) + sum n q
          = mass h + sum n (fun x => q x * ind (S x))); [|lra].
  unfold mass. rewrite <- !sum_plus. apply sum_ext; intros x _.
  unfold off, inb. destruct (in_dec Nat.eq_dec x h).
  - rewrite (Hh x); auto; simpl; lra.
  - destruct (S x); simpl; lra.
Qed.

Theorem without_lies_in_S_at_most_as_often : forall k h,
  (forall x, In x h -> S x = true) -> in_S k h <= s ^ k.
Proof.
  induction k; intros h Hh; simpl; [lra|].
  pose proof s_ge. pose proof s_le. pose proof (left_in_S h Hh).
  assert (0 <= sum n (fun x => off h x * ind (S x))).
  { apply sum_ge0; intros. apply Rmult_le_pos; [apply off_ge|apply ind_ge]. }
  destruct (Req_EM_T (mass h) 0) as [e|e].
  - assert (s = 1) by lra. rewrite H3, pow1. lra.
  - assert (Hm : 0 < mass h) by (pose proof (mass_ge h); lra).
    assert (sum n (fun x => off h x / mass h * ind (S x) * in_S k (x :: h))
            <= sum n (fun x => off h x * ind (S x) * (/ mass h * s ^ k))).
    { apply sum_le; intros x _. destruct (S x) eqn:E; simpl; [|lra].
      assert (in_S k (x :: h) <= s ^ k).
      { apply IHk. intros z [Hz|Hz]; [subst; auto|auto]. }
      replace (off h x * 1 * (/ mass h * s ^ k)) with (off h x / mass h * 1 * s ^ k)
        by (unfold Rdiv; ring).
      apply Rmult_le_compat_l; auto. rewrite Rmult_1_r.
      apply Rmult_le_pos; [apply off_ge|left; apply Rinv_0_lt_compat; auto]. }
    rewrite sum_scal, H1 in H3.
    assert ((mass h - (1 - s)) * / mass h <= s).
    { replace s with (s * mass h * / mass h) at 2 by (field; lra).
      apply Rmult_le_compat_r; [left; apply Rinv_0_lt_compat; auto|].
      pose proof (mass_le h). nra. }
    apply Rle_trans with ((mass h - (1 - s)) * / mass h * s ^ k); [lra|].
    apply Rmult_le_compat_r; auto. apply pow_le; auto.
Qed.
End Without.
