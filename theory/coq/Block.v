(* Theorems 7.1, 7.2 and, in part, 7.3: block verification is lossless, and no lossless rule for one
   path keeps more.

   g tokens are drafted one after another. A rule is any r with r l N b the probability that of the
   path l it keeps the first N tokens and adds the bonus token b; later steps add tokens of the
   target. *)
Require Import Reals Lra Lia List.
Require Import Sums.
Import ListNotations.
Open Scope R_scope.

Section Path.
Variable n : nat.
Variables p q : list nat -> nat -> R.                 (* target and draft after a text *)
Hypothesis p0 : forall h x, 0 <= p h x.
Hypothesis q0 : forall h x, 0 <= q h x.
Hypothesis p1 : forall h, sum n (p h) = 1.
Hypothesis q1 : forall h, sum n (q h) = 1.
Definition tokens (t : list nat) := Forall (fun y => (y < n)%nat) t.

(* ---------------------------------------------------------------- a rule for one drafted path *)

(* The mean of f over k tokens drafted after h. *)
Fixpoint mean (k : nat) (h : list nat) (f : list nat -> R) : R :=
  match k with
  | O => f []
  | S k => sum n (fun x => q h x * mean k (x :: h) (fun l => f (x :: l)))
  end.
(* A number that depends on the path, on how much of it is kept, and on the bonus token. *)
Definition outcome := list nat -> nat -> nat -> R.
(* Its mean where k tokens are drafted after h and the rule r decides. *)
Definition E (r : outcome) (k : nat) (h : list nat) (f : outcome) : R :=
  mean k h (fun l => sum (S k) (fun N => sum n (fun b => r l N b * f l N b))).

(* f of the rest, if the first token of the path is x and is kept; otherwise 0. *)
Definition under (x : nat) (f : outcome) : outcome := fun l N b =>
  match l, N with z :: l, S N => if Nat.eqb z x then f l N b else 0 | _, _ => 0 end.
(* 1 if nothing is kept and the bonus token is x. *)
Definition here (x : nat) : outcome := fun l N b =>
  match l, N with _ :: _, S _ => 0 | _, _ => if Nat.eqb b x then 1 else 0 end.
(* 1 if the path begins with t and at least all of t is kept. *)
Fixpoint kept (t : list nat) : outcome :=
  match t with [] => fun _ _ _ => 1 | x :: t => under x (kept t) end.
(* 1 if the path begins with t, exactly t is kept, and the bonus token is y. *)
Fixpoint ended (t : list nat) (y : nat) : outcome :=
  match t with [] => here y | x :: t => under x (ended t y) end.
(* The probability that the text, with what later steps add, begins with t. *)
Fixpoint text (h t : list nat) : outcome :=
  match t with
  | [] => fun _ _ _ => 1
  | x :: t => fun l N b => under x (text (x :: h) t) l N b + here x l N b * along p (x :: h) t
  end.
(* 1 if at least i tokens are kept. *)
Definition at_least (i : nat) : outcome := fun _ N _ => if Nat.leb i N then 1 else 0.

(* Probabilities; those of a lossless rule sum to 1 on every path that can be drafted. *)
Definition rule (r : outcome) (k : nat) := (forall l N b, 0 <= r l N b) /\
  forall l, length l = k -> sum (S k) (fun N => sum n (r l N)) <= 1.
(* Every text of at most g + 1 tokens has the target's probability. *)
Definition lossless (r : outcome) (g : nat) := forall t, tokens t -> (length t <= S g)%nat ->
  E r g [] (text [] t) = along p [] t.

(* The probability of a text is not negative, ... *)
Lemma along_ge d : (forall h x, 0 <= d h x) -> forall t h, 0 <= along d h t.
Proof. intros d0 t. induction t; simpl; intros; [lra|]. apply Rmult_le_pos; auto. Qed.
(* ... and with one more token it is the product with that token's. *)
Lemma along_snoc d t y : forall h, along d h (t ++ [y]) = along d h t * d (rev t ++ h) y.
Proof.
  induction t as [|x t IH]; intros h; simpl; [ring|]. rewrite IH, <- app_assoc. simpl. ring.
Qed.

(* The mean is monotone, ... *)
Lemma mean_le k : forall h f f', (forall l, length l = k -> tokens l -> f l <= f' l) ->
  mean k h f <= mean k h f'.
Proof.
  induction k as [|k IH]; intros h f f' H; simpl; [apply H; [auto|constructor]|].
  apply sum_le; intros x Hx. apply Rmult_le_compat_l; auto. apply IH. intros l Hl Ht.
  apply H; [simpl; auto|constructor; auto].
Qed.
(* ... it depends on the values at paths of k tokens only, ... *)
Lemma mean_ext k h f f' : (forall l, length l = k -> tokens l -> f l = f' l) ->
  mean k h f = mean k h f'.
Proof. intros H. apply Rle_antisym; apply mean_le; intros; rewrite H; auto; lra. Qed.
(* ... and it is linear: sums, ... *)
Lemma mean_plus k : forall h f f', mean k h (fun l => f l + f' l) = mean k h f + mean k h f'.
Proof.
  induction k as [|k IH]; intros; simpl; auto. rewrite <- sum_plus.
  apply sum_ext; intros. rewrite IH. ring.
Qed.
(* ... factors, ... *)
Lemma mean_scal k c : forall h f, mean k h (fun l => f l * c) = mean k h f * c.
Proof.
  induction k as [|k IH]; intros; simpl; auto. rewrite <- sum_scal.
  apply sum_ext; intros. rewrite IH. ring.
Qed.
(* ... constants. *)
Lemma mean_const k c : forall h, mean k h (fun _ => c) = c.
Proof.
  induction k as [|k IH]; intros; simpl; auto.
  rewrite (sum_ext n _ (fun x => q h x * c)) by (intros; now rewrite IH).
  rewrite sum_scal, q1. ring.
Qed.

(* The same of the mean over paths, numbers and bonus tokens. *)
Lemma E_ext r k h f f' :
  (forall l N b, length l = k -> tokens l -> (N <= k)%nat -> f l N b = f' l N b) ->
  E r k h f = E r k h f'.
Proof.
  intros H. apply mean_ext; intros. apply sum_ext; intros. apply sum_ext; intros.
  rewrite H; auto. lia.
Qed.
Lemma E_plus r k h f f' : E r k h (fun l N b => f l N b + f' l N b) = E r k h f + E r k h f'.
Proof.
  unfold E. rewrite <- mean_plus. apply mean_ext; intros. rewrite <- sum_plus.
  apply sum_ext; intros. rewrite <- sum_plus. apply sum_ext; intros. ring.
Qed.
Lemma E_scal r k h f c : E r k h (fun l N b => f l N b * c) = E r k h f * c.
Proof.
  unfold E. rewrite <- mean_scal. apply mean_ext; intros. rewrite <- sum_scal.
  apply sum_ext; intros. rewrite <- sum_scal. apply sum_ext; intros. ring.
Qed.
Lemma E_sum r k h m (f : nat -> outcome) :
  E r k h (fun l N b => sum m (fun i => f i l N b)) = sum m (fun i => E r k h (f i)).
Proof.
  induction m as [|m IH]; simpl; [|now rewrite E_plus, IH].
  rewrite (E_ext _ _ _ _ (fun _ _ _ => 0 * 0)) by (intros; ring). rewrite E_scal. ring.
Qed.
(* The first drafted token is x and is kept: the rest is a path with a rule of its own. *)
Lemma E_under r k h x f : (x < n)%nat ->
  E r (S k) h (under x f) = q h x * E (fun l N => r (x :: l) (S N)) k (x :: h) f.
Proof.
  intros Hx. unfold E at 1. cbn [mean].
  rewrite (sum_ext n _ (fun z => if Nat.eqb z x
    then q h z * E (fun l N => r (z :: l) (S N)) k (z :: h) f else 0)).
  - now rewrite (sum_pick n x (fun z => q h z * E (fun l N => r (z :: l) (S N)) k (z :: h) f)).
  - intros z _. unfold E. destruct (Nat.eqb z x) eqn:F.
    + f_equal. apply mean_ext; intros. rewrite sum_first. simpl under. rewrite F.
      rewrite (sum_ext n _ (fun _ => 0)) by (intros; ring). rewrite sum_const0. ring.
    + rewrite (mean_ext _ _ _ (fun _ => 0)), mean_const; [ring|]. intros l _ _.
      rewrite <- (sum_const0 (S (S k))). apply sum_ext; intros N _. rewrite <- (sum_const0 n).
      apply sum_ext; intros b _. destruct N; simpl; [|rewrite F]; ring.
Qed.
(* Of an empty path nothing is kept. *)
Lemma E_under_0 r h x f : E r 0 h (under x f) = 0.
Proof.
  unfold E. simpl. rewrite (sum_ext n _ (fun _ => 0)) by (intros; ring). rewrite sum_const0. ring.
Qed.

(* ------------------------------------------------------------ 7.2: no rule keeps more of a path *)

(* A token more of the text is kept, or is the bonus token, or comes after the bonus token. *)
Lemma next_token t y : forall h l N b, text h (t ++ [y]) l N b
  = kept (t ++ [y]) l N b + ended t y l N b + (text h t l N b - kept t l N b) * p (rev t ++ h) y.
Proof.
  induction t as [|x t IH]; intros h l N b; simpl; [ring|].
  rewrite along_snoc, <- app_assoc. simpl. unfold under.
  destruct l as [|z l], N; try ring. destruct (Nat.eqb z x); [rewrite IH|]; ring.
Qed.
(* The same on average. *)
Lemma E_next_token r k h t y : E r k h (text h (t ++ [y]))
  = E r k h (kept (t ++ [y])) + E r k h (ended t y)
    + (E r k h (text h t) - E r k h (kept t)) * p (rev t ++ h) y.
Proof.
  rewrite (E_ext _ _ _ _ (fun l N b => kept (t ++ [y]) l N b + ended t y l N b
    + (text h t l N b + kept t l N b * -1) * p (rev t ++ h) y)).
  - rewrite !E_plus, E_scal, E_plus, E_scal. ring.
  - intros. rewrite next_token. ring.
Qed.
(* An event has no negative value. *)
Lemma ended_ge t y : forall l N b, 0 <= ended t y l N b.
Proof.
  induction t as [|x t IH]; intros l N b; simpl; unfold under, here; destruct l as [|z l], N;
    try lra; try (destruct (Nat.eqb b y); lra). destruct (Nat.eqb z x); [apply IH|lra].
Qed.
(* What is kept is drafted. *)
Lemma kept_is_drafted t : forall r k h, rule r k -> tokens t -> E r k h (kept t) <= along q h t.
Proof.
  induction t as [|x t IH]; intros r k h [r0 r1] Ht.
  - apply Rle_trans with (mean k h (fun _ => 1)); [|rewrite mean_const; simpl; lra].
    apply mean_le; intros l Hl _. eapply Rle_trans; [right|apply (r1 l Hl)].
    apply sum_ext; intros. apply sum_ext; intros. simpl. ring.
  - inversion Ht. destruct k as [|k].
    { simpl kept. rewrite E_under_0. now apply along_ge. }
    simpl. rewrite E_under by auto. apply Rmult_le_compat_l; auto. apply IH; auto. split; auto.
    intros z Hz. apply Rle_trans with (sum (S (S k)) (fun N => sum n (r (x :: z) N))).
    + rewrite (sum_first (S k)). assert (0 <= sum n (r (x :: z) O)) by (apply sum_ge0; auto). lra.
    + apply r1. simpl. auto.
Qed.
(* What is kept grows with p at most. *)
Lemma kept_grows_with_p r g : rule r g -> lossless r g -> forall v u, tokens (u ++ v) ->
  (length (u ++ v) <= g)%nat ->
  E r g [] (kept (u ++ v)) <= E r g [] (kept u) * along p (rev u) v.
Proof.
  intros [r0 _] L v. induction v as [|y v IH]; intros u Ht Hl.
  - rewrite app_nil_r. simpl. lra.
  - replace (u ++ y :: v) with ((u ++ [y]) ++ v) in * by (rewrite <- app_assoc; auto).
    eapply Rle_trans; [apply IH; auto|]. rewrite rev_unit. simpl. rewrite <- Rmult_assoc.
    apply Rmult_le_compat_r; [now apply along_ge|].
    unfold tokens in Ht. apply Forall_app in Ht. destruct Ht as [Ht _].
    rewrite !app_length in Hl. simpl in Hl.
    pose proof (E_next_token r g [] u y) as N. rewrite app_nil_r, !L, along_snoc in N;
      try (rewrite ?app_length; simpl; lia); auto.
    2:{ apply Forall_app in Ht. apply Ht. }
    rewrite app_nil_r in N. assert (0 <= E r g [] (ended u y)); [|lra].
    rewrite <- (mean_const g 0 []). apply mean_le; intros. apply sum_ge0; intros.
    apply sum_ge0; intros. apply Rmult_le_pos; auto. apply ended_ge.
Qed.
(* Theorem 7.2, the bound: for every split of a text into u and v. *)
Theorem no_rule_keeps_more r g u v : rule r g -> lossless r g -> tokens (u ++ v) ->
  (length (u ++ v) <= g)%nat -> E r g [] (kept (u ++ v)) <= along q [] u * along p (rev u) v.
Proof.
  intros Hr L Ht Hl. eapply Rle_trans; [now apply kept_grows_with_p|].
  apply Rmult_le_compat_r; [now apply along_ge|]. apply kept_is_drafted; auto.
  apply Forall_app in Ht. apply Ht.
Qed.

(* -------------------------------------------------------------------- 7.1: block verification *)

Definition weight h w x := ratio (w * p h x) (q h x).
Definition left_ h w y := pos (w * p h y - q h y).
Definition Z h w := sum n (left_ h w).
Definition passes h w := if Req_EM_T (Z h w + 1 - w) 0 then 1 else Z h w / (Z h w + 1 - w).
Definition bonus h w y := if Req_EM_T (Z h w) 0 then p h y else left_ h w y / Z h w.
(* The weight of t, drafted after h of weight w. *)
Fixpoint weights h w (t : list nat) : R :=
  match t with [] => w | x :: t => weights (x :: h) (weight h w x) t end.
(* The probability that no test passes, neither that of h nor one of the places of l behind it. *)
Fixpoint none h w (l : list nat) : R :=
  match l with [] => 1 - w | x :: l => none (x :: h) (weight h w x) l * (1 - passes h w) end.
(* The rule: N is the last place whose test passes. *)
Fixpoint block h w (l : list nat) (N b : nat) : R :=
  match l, N with
  | [], O => w * p h b
  | x :: l, O => none (x :: h) (weight h w x) l * passes h w * bonus h w b
  | x :: l, S N => block (x :: h) (weight h w x) l N b
  | [], S _ => 0
  end.

(* A weight is a probability. *)
Lemma weight_in h w x : 0 <= w -> 0 <= weight h w x <= 1.
Proof. intros. apply ratio_in; auto. apply Rmult_le_pos; auto. Qed.
(* Drafted and weighed: the smaller one of what the target and the draft give to x. *)
Lemma weighed h w x : 0 <= w -> q h x * weight h w x = Rmin (w * p h x) (q h x).
Proof. intros. apply drawn_and_accepted; auto. apply Rmult_le_pos; auto. Qed.
(* Z, the tests' probabilities, those of their failures and the bonus token's are probabilities. *)
Lemma Z_ge h w : 0 <= Z h w.
Proof. apply sum_ge0; intros; apply pos_ge. Qed.
Lemma passes_in h w : w <= 1 -> 0 <= passes h w <= 1.
Proof.
  intros. pose proof (Z_ge h w). unfold passes. destruct (Req_EM_T (Z h w + 1 - w) 0); [lra|].
  assert (0 < / (Z h w + 1 - w)) by (apply Rinv_0_lt_compat; lra).
  split; [apply Rmult_le_pos; lra|]. apply Rmult_le_reg_r with (Z h w + 1 - w); [lra|].
  unfold Rdiv. rewrite Rmult_assoc, Rinv_l; lra.
Qed.
Lemma none_in l : forall h w, 0 <= w <= 1 -> 0 <= none h w l <= 1.
Proof.
  induction l as [|x l IH]; intros h w Hw; simpl; [lra|].
  pose proof (IH (x :: h) (weight h w x) (weight_in h w x ltac:(lra))).
  pose proof (passes_in h w ltac:(lra)). split; [apply Rmult_le_pos; lra|].
  rewrite <- (Rmult_1_l 1). apply Rmult_le_compat; lra.
Qed.
Lemma bonus_ge h w y : 0 <= bonus h w y.
Proof.
  unfold bonus. destruct (Req_EM_T (Z h w) 0); auto. pose proof (Z_ge h w).
  apply Rmult_le_pos; [apply pos_ge|left; apply Rinv_0_lt_compat; lra].
Qed.
Lemma bonus_mass h w : sum n (bonus h w) = 1.
Proof.
  unfold bonus. destruct (Req_EM_T (Z h w) 0); auto. unfold Rdiv. rewrite sum_scal.
  fold (Z h w). field. auto.
Qed.
(* A number is kept unless no test passes. *)
Lemma block_mass l : forall h w,
  sum (S (length l)) (fun N => sum n (block h w l N)) = 1 - none h w l.
Proof.
  induction l as [|x l IH]; intros h w.
  - simpl. rewrite (sum_ext n _ (fun b => p h b * w)) by (intros; ring).
    rewrite sum_scal, p1. ring.
  - simpl length. rewrite sum_first. simpl none. cbn [block].
    rewrite IH, (sum_ext n _ (fun b => bonus h w b * (none (x :: h) (weight h w x) l * passes h w)))
      by (intros; ring).
    rewrite sum_scal, bonus_mass. ring.
Qed.
(* Block verification is a rule. *)
Lemma block_is_a_rule k h w : 0 <= w <= 1 -> rule (block h w) k.
Proof.
  intros Hw. split.
  - intros l. revert h w Hw. induction l as [|x l IH]; intros h w Hw N b; simpl.
    + destruct N; [apply Rmult_le_pos; [apply Hw|apply p0]|lra].
    + pose proof (weight_in h w x ltac:(lra)). destruct N; [|now apply IH].
      pose proof (none_in l (x :: h) (weight h w x) H). pose proof (passes_in h w ltac:(lra)).
      pose proof (bonus_ge h w b). repeat apply Rmult_le_pos; lra.
  - intros l <-. rewrite block_mass. pose proof (none_in l h w Hw). lra.
Qed.

(* The weight that is lost at the next token, summed over that token. *)
Lemma ended_above h w : 0 <= w -> sum n (fun x => q h x * (1 - weight h w x)) = Z h w + 1 - w.
Proof.
  intros Hw.
  rewrite (sum_ext n _ (fun x => q h x + (left_ h w x + p h x * - w))), !sum_plus, sum_scal, q1, p1.
  - unfold Z. ring.
  - intros x _. pose proof (weighed h w x Hw). pose proof (split (w * p h x) (q h x)).
    unfold left_. lra.
Qed.
(* After h of weight w, no test of the k places behind it or of its own passes with 1 - w. *)
Lemma mean_none k : forall h w, 0 <= w <= 1 -> mean k h (none h w) = 1 - w.
Proof.
  induction k as [|k IH]; intros h w Hw; simpl; auto.
  rewrite (sum_ext n _ (fun x => q h x * (1 - weight h w x) * (1 - passes h w))).
  - rewrite sum_scal, ended_above by lra. pose proof (Z_ge h w).
    unfold passes. destruct (Req_EM_T (Z h w + 1 - w) 0); [lra|]. field. auto.
  - intros x _. rewrite mean_scal, IH by (apply weight_in; lra). ring.
Qed.
(* Theorem 7.1.1: P(N >= i and x^i = t) = q(t) w(t). *)
Theorem kept_with_its_weight : forall t k h w, 0 <= w <= 1 -> tokens t -> (length t <= k)%nat ->
  E (block h w) k h (kept t) = along q h t * weights h w t.
Proof.
  induction t as [|x t IH]; intros k h w Hw Ht Hk.
  - transitivity (mean k h (fun l => 1 + none h w l * -1)).
    + apply mean_ext; intros l <- _. transitivity (1 - none h w l); [|ring].
      rewrite <- block_mass. apply sum_ext; intros. apply sum_ext; intros. simpl. ring.
    + rewrite mean_plus, mean_const, mean_scal, mean_none by auto. simpl. ring.
  - inversion Ht. destruct k as [|k]; simpl in Hk; [lia|]. simpl. rewrite E_under by auto.
    change (fun l N => block h w (x :: l) (S N)) with (block (x :: h) (weight h w x)).
    rewrite IH by (auto; try lia; apply weight_in; lra). ring.
Qed.
(* Nothing is kept, and the bonus token is y. *)
Lemma block_here k h w y : 0 <= w <= 1 -> (y < n)%nat -> (0 < k)%nat ->
  E (block h w) k h (here y) = left_ h w y.
Proof.
  intros Hw Hy Hk. destruct k as [|k]; [lia|]. unfold E. cbn [mean].
  rewrite (sum_ext n _ (fun x => q h x * (1 - weight h w x) * (passes h w * bonus h w y))).
  - rewrite sum_scal, ended_above by lra. pose proof (Z_ge h w). unfold passes, bonus.
    destruct (Req_EM_T (Z h w) 0) as [e|e].
    + assert (left_ h w y = 0) as ->
        by (apply (sum_zero n (left_ h w)); auto; intros; apply pos_ge).
      destruct (Req_EM_T (Z h w + 1 - w) 0) as [e'|e']; [rewrite e'|rewrite e]; unfold Rdiv; ring.
    + destruct (Req_EM_T (Z h w + 1 - w) 0); [exfalso; lra|]. field. auto.
  - intros x _. rewrite <- (mean_none k (x :: h)) by (apply weight_in; lra).
    rewrite Rmult_assoc, <- mean_scal. f_equal. apply mean_ext; intros l _ _. rewrite sum_first.
    rewrite (sum_ext n _ (fun b => if Nat.eqb b y then
      none (x :: h) (weight h w x) l * passes h w * bonus h w b else 0)).
    2:{ intros b _. simpl. destruct (Nat.eqb b y); ring. }
    rewrite (sum_pick n y (fun b => none (x :: h) (weight h w x) l * passes h w * bonus h w b))
      by auto.
    rewrite (sum_ext _ _ (fun _ => 0)), sum_const0; [ring|].
    intros N _. rewrite <- (sum_const0 n). apply sum_ext; intros. simpl. ring.
Qed.
(* Where t is kept, the next token of the text, kept or bonus, is the target's. *)
Lemma block_next_token t y : forall k h w,
  0 <= w <= 1 -> tokens (t ++ [y]) -> (length t <= k)%nat ->
  E (block h w) k h (kept (t ++ [y])) + E (block h w) k h (ended t y)
  = E (block h w) k h (kept t) * p (rev t ++ h) y.
Proof.
  induction t as [|x t IH]; intros k h w Hw Ht Hk; inversion Ht; simpl app; simpl kept; simpl ended.
  - pose proof (kept_with_its_weight [] k h w Hw ltac:(constructor) Hk) as K. simpl in K.
    rewrite K. simpl. destruct k as [|k].
    + rewrite E_under_0. unfold E. simpl.
      rewrite (sum_ext n _ (fun b => if Nat.eqb b y then w * p h b else 0)).
      * rewrite (sum_pick n y (fun b => w * p h b)) by auto. ring.
      * intros b _. destruct (Nat.eqb b y); ring.
    + rewrite E_under, block_here by (auto; lia).
      change (fun l N => block h w (y :: l) (S N)) with (block (y :: h) (weight h w y)).
      rewrite (kept_with_its_weight [] k)
        by (try constructor; simpl; try lia; apply weight_in; lra).
      simpl. pose proof (weighed h w y ltac:(lra)). pose proof (split (w * p h y) (q h y)).
      unfold left_. lra.
  - destruct k as [|k]; simpl in Hk; [lia|]. rewrite !E_under by auto.
    change (fun l N => block h w (x :: l) (S N)) with (block (x :: h) (weight h w x)).
    rewrite <- Rmult_plus_distr_l, IH by (auto; try lia; apply weight_in; lra).
    simpl. rewrite <- app_assoc. simpl. ring.
Qed.
(* Theorem 7.1.2. *)
Theorem block_is_lossless : forall g, lossless (block [] 1) g.
Proof.
  intros g t. induction t as [|y t IH] using rev_ind; intros Ht Hg.
  - rewrite (kept_with_its_weight [] g) by (simpl; try lra; try lia; constructor). simpl. ring.
  - rewrite app_length in Hg. simpl in Hg.
    rewrite E_next_token, block_next_token by (auto; try lra; lia).
    apply Forall_app in Ht. rewrite IH by (try apply Ht; lia). rewrite along_snoc, app_nil_r. ring.
Qed.

(* Weights along a path are probabilities, ... *)
Lemma weights_in t : forall h w, 0 <= w <= 1 -> 0 <= weights h w t <= 1.
Proof. induction t; simpl; intros; auto. apply IHt. apply weight_in. lra. Qed.
(* ... and go on by one token as they began. *)
Lemma weights_snoc t y : forall h w,
  weights h w (t ++ [y]) = weight (rev t ++ h) (weights h w t) y.
Proof. induction t as [|x t IH]; intros; simpl; auto. rewrite IH, <- app_assoc. auto. Qed.
(* Theorem 7.1.1: P(N = i, x^i = t, bonus token y) = q(t) (w(t) p(y | t) - q(y | t))+, for i < g;
   the sum over y is q(t) Z. *)
Theorem ended_with_the_residual : forall t y g, tokens (t ++ [y]) -> (length t < g)%nat ->
  E (block [] 1) g [] (ended t y) = along q [] t * left_ (rev t) (weights [] 1 t) y.
Proof.
  intros t y g Ht Hg. pose proof (block_next_token t y g [] 1 ltac:(lra) Ht ltac:(lia)) as B.
  rewrite !kept_with_its_weight, along_snoc, weights_snoc, app_nil_r in B;
    try lra; try (rewrite app_length; simpl); try lia; auto; [|apply Forall_app in Ht; apply Ht].
  set (w := weights [] 1 t) in *. assert (0 <= w) by (apply weights_in; lra).
  pose proof (weighed (rev t) w y H). pose proof (split (w * p (rev t) y) (q (rev t) y)).
  unfold left_. replace (pos (w * p (rev t) y - q (rev t) y))
    with (w * p (rev t) y - q (rev t) y * weight (rev t) w y) by lra.
  rewrite Rmult_minus_distr_l. rewrite <- !Rmult_assoc. lra.
Qed.
(* Theorem 7.1.3: q(t) w(t) is the least of q(u) p(v | u) over the splits of t into u and v. *)
Theorem weight_is_the_least : forall t, tokens t ->
  (forall u v, t = u ++ v -> along q [] t * weights [] 1 t <= along q [] u * along p (rev u) v) /\
  exists u v, t = u ++ v /\ along q [] t * weights [] 1 t = along q [] u * along p (rev u) v.
Proof.
  intros t Ht. split.
  - intros u v ->. rewrite <- (kept_with_its_weight (u ++ v) (length (u ++ v))) by (auto; lra).
    apply no_rule_keeps_more; auto; [apply block_is_a_rule; lra|apply block_is_lossless].
  - induction t as [|y t IH] using rev_ind; [exists [], []; simpl; split; auto; ring|].
    apply Forall_app in Ht. destruct IH as [u [v [-> H]]]; [apply Ht|].
    rewrite along_snoc, weights_snoc, app_nil_r, Rmult_assoc, weighed
      by (apply weights_in; lra).
    destruct (Rle_dec (weights [] 1 (u ++ v) * p (rev (u ++ v)) y) (q (rev (u ++ v)) y)).
    + exists u, (v ++ [y]). rewrite app_assoc. split; auto. rewrite Rmin_left by auto.
      rewrite <- Rmult_assoc, H, along_snoc, rev_app_distr. ring.
    + exists ((u ++ v) ++ [y]), []. rewrite app_nil_r. split; auto. rewrite Rmin_right by lra.
      rewrite along_snoc, app_nil_r. simpl. ring.
Qed.

(* Theorem 7.3: the probability that all tokens of t, after h, pass tests of their own, ... *)
Fixpoint tested h (t : list nat) : R :=
  match t with [] => 1 | x :: t => ratio (p h x) (q h x) * tested (x :: h) t end.
(* ... is at most its weight in block verification. *)
Lemma tested_below t : forall h w, 0 <= w <= 1 ->
  0 <= tested h t /\ w * tested h t <= weights h w t.
Proof.
  induction t as [|x t IH]; intros h w Hw; simpl; [lra|].
  destruct (IH (x :: h) (weight h w x) (weight_in h w x ltac:(lra))) as [T0 T].
  pose proof (ratio_in (p h x) (q h x) (p0 h x) (q0 h x)) as I.
  split; [apply Rmult_le_pos; lra|]. eapply Rle_trans; [|apply T]. rewrite <- Rmult_assoc.
  apply Rmult_le_compat_r; auto. unfold weight. pose proof (p0 h x). pose proof (q0 h x).
  unfold ratio in *. destruct (Rlt_dec (q h x) (w * p h x)); [nra|].
  destruct (Rlt_dec (q h x) (p h x)); [|unfold Rdiv; right; ring].
  destruct (Req_dec (q h x) 0) as [e|e].
  - assert (w = 0) by nra. subst w. unfold Rdiv. rewrite !Rmult_0_l. lra.
  - apply Rmult_le_reg_r with (q h x); [lra|].
    replace (w * p h x / q h x * q h x) with (w * p h x) by (field; auto). nra.
Qed.
Theorem block_keeps_what_tests_keep : forall t, tested [] t <= weights [] 1 t.
Proof. intros t. pose proof (tested_below t [] 1 ltac:(lra)). lra. Qed.

(* ------------------------------------------------------------------- the number of tokens kept *)

(* The sum of f over the texts of i tokens. *)
Fixpoint texts (i : nat) (f : list nat -> R) : R :=
  match i with O => f [] | S i => sum n (fun x => texts i (fun t => f (x :: t))) end.
(* Sums over texts are monotone, ... *)
Lemma texts_le i : forall f f', (forall t, tokens t -> length t = i -> f t <= f' t) ->
  texts i f <= texts i f'.
Proof.
  induction i as [|i IH]; intros f f' H; simpl; [apply H; [constructor|auto]|].
  apply sum_le; intros. apply IH. intros. apply H; [constructor; auto|simpl; auto].
Qed.
(* ... depend on the values only, ... *)
Lemma texts_ext i f f' : (forall t, tokens t -> length t = i -> f t = f' t) ->
  texts i f = texts i f'.
Proof. intros H. apply Rle_antisym; apply texts_le; intros; rewrite H; auto; lra. Qed.
(* ... and commute with the mean. *)
Lemma E_texts r k h i : forall f : list nat -> outcome,
  E r k h (fun l N b => texts i (fun t => f t l N b)) = texts i (fun t => E r k h (f t)).
Proof.
  induction i as [|i IH]; intros f; simpl; auto.
  rewrite E_sum. apply sum_ext; intros. apply IH.
Qed.
(* A sum of zeros. *)
Lemma texts_0 i : texts i (fun _ => 0) = 0.
Proof.
  induction i as [|i IH]; simpl; auto. transitivity (sum n (fun _ => 0)); [|apply sum_const0].
  now apply sum_ext.
Qed.
(* N >= i: the first i tokens of the path, whatever they are, are kept. *)
Lemma at_least_is_kept i : forall l N b, tokens l -> (N <= length l)%nat ->
  at_least i l N b = texts i (fun t => kept t l N b).
Proof.
  induction i as [|i IH]; intros l N b Hl HN; auto. simpl. unfold under.
  destruct l as [|z l], N as [|N]; simpl in HN; try lia;
    try (transitivity (sum n (fun _ => 0)); [symmetry; apply sum_const0|];
         apply sum_ext; intros; now rewrite texts_0).
  inversion Hl as [|? ? Hz Hl']. change (at_least (S i) (z :: l) (S N) b) with (at_least i l N b).
  rewrite IH by (auto; lia).
  rewrite <- (sum_pick n z (fun _ => texts i (fun t => kept t l N b))) by auto.
  apply sum_ext; intros y _. rewrite (Nat.eqb_sym z). destruct (Nat.eqb y z); auto.
  now rewrite texts_0.
Qed.
(* The same on average. *)
Lemma E_at_least r g i : E r g [] (at_least i) = texts i (fun t => E r g [] (kept t)).
Proof.
  rewrite <- E_texts. apply E_ext. intros. apply at_least_is_kept; auto. lia.
Qed.
(* The mean of N is the sum of P(N >= i) over 1 <= i <= g. *)
Lemma mean_number r g :
  E r g [] (fun _ N _ => INR N) = sum g (fun i => E r g [] (at_least (S i))).
Proof.
  rewrite <- E_sum. apply E_ext. intros l N b _ _ HN. unfold at_least.
  replace N with (Nat.min g N) at 1 by lia. clear HN. induction g as [|g IH]; auto.
  cbn [sum]. rewrite <- IH. destruct (Nat.leb_spec (S g) N).
  - rewrite !Nat.min_l by lia. apply S_INR.
  - rewrite !Nat.min_r by lia. ring.
Qed.
(* Theorem 7.1.3: P(N >= i) is the sum of q(t) w(t), and E[N] the sum of these. *)
Theorem block_mean : forall g, E (block [] 1) g [] (fun _ N _ => INR N)
  = sum g (fun i => texts (S i) (fun t => along q [] t * weights [] 1 t)).
Proof.
  intros g. rewrite mean_number. apply sum_ext; intros i Hi. rewrite E_at_least.
  apply texts_ext; intros. apply kept_with_its_weight; auto; lra || lia.
Qed.
(* Theorem 7.2: of no path does a lossless rule keep a beginning more often than block verification,
   so that it has no larger P(N >= i) and no larger E[N]. *)
Theorem block_keeps_most : forall r g, rule r g -> lossless r g ->
  (forall t, tokens t -> (length t <= g)%nat ->
    E r g [] (kept t) <= E (block [] 1) g [] (kept t)) /\
  (forall i, (i <= g)%nat -> E r g [] (at_least i) <= E (block [] 1) g [] (at_least i)) /\
  E r g [] (fun _ N _ => INR N) <= E (block [] 1) g [] (fun _ N _ => INR N).
Proof.
  intros r g Hr L. assert (A : forall t, tokens t -> (length t <= g)%nat ->
    E r g [] (kept t) <= E (block [] 1) g [] (kept t)).
  { intros t Ht Hg. rewrite kept_with_its_weight by (auto; lra).
    destruct (weight_is_the_least t Ht) as [_ [u [v [-> ->]]]]. now apply no_rule_keeps_more. }
  assert (B : forall i, (i <= g)%nat -> E r g [] (at_least i) <= E (block [] 1) g [] (at_least i)).
  { intros i Hi. rewrite !E_at_least. apply texts_le. intros. apply A; auto. lia. }
  repeat split; auto. rewrite !mean_number. apply sum_le. intros. apply B. lia.
Qed.
End Path.
