(* Theorems 4.3, 4.6 and 4.7.1. rejw and rejr are the recursive definitions of theorems 4.1 and 4.2,
   and not the scalar form, which theorem 4.3 is about. *)
Require Import Reals Lra Lia List.
Require Import Sums.
Open Scope R_scope.

Section T.
Variable n : nat.
Variables p q : nat -> R.
Hypothesis p0 : forall x, 0 <= p x.  Hypothesis q0 : forall x, 0 <= q x.
Hypothesis p1 : sum n p = 1.  Hypothesis q1 : sum n q = 1.
Definition inb (x:nat) (h:list nat) := if in_dec Nat.eq_dec x h then true else false.
Definition off (h:list nat) x := if inb x h then 0 else q x.   (* q off the rejected tokens *)
Definition mass h := sum n (off h).
(* The distribution of the next draw, what it leaves of a target P, and the next target. *)
Definition draw h x := off h x / mass h.
Definition res (d P:nat->R) := sum n (fun y => pos (P y - d y)).
Definition next d P := fun y => pos (P y - d y) / res d P.
(* The probability that none of k further candidates is accepted, the target now being P and h
   rejected: without replacement, and with it. *)
Fixpoint rejw (k:nat) (h:list nat) (P:nat->R) : R :=
  match k with O => 1 | S k => if Req_EM_T (mass h) 0 then 1
    else sum n (fun x => (draw h x - Rmin (P x) (draw h x)) * rejw k (x::h) (next (draw h) P)) end.
Fixpoint rejr (k:nat) (P:nat->R) : R :=
  match k with O => 1 | S k => sum n (fun x => (q x - Rmin (P x) (q x)) * rejr k (next q P)) end.
(* The target at the level c: p without c q, cut at 0, and normalised by what is left. *)
Definition cut c y := pos (p y - c * q y).
Definition Rc c := sum n (cut c).
Definition at_ c := fun y => cut c y / Rc c.
(* The level of RRS, k rejections after the level M. *)
Fixpoint it k M := match k with O => M | S k => it k (M + Rc M) end.
(* What is left is not negative, does not grow with the level, ... *)
Lemma Rc_ge c : 0 <= Rc c.
Proof. apply sum_ge0; intros; apply pos_ge. Qed.
Lemma Rc_anti c d : c <= d -> Rc d <= Rc c.
Proof. intros. apply sum_le; intros y _. apply pos_mono. pose proof (q0 y). nra. Qed.
(* ... and falls by no more than the level rises. *)
Lemma slope c d : c <= d -> c + Rc c <= d + Rc d.
Proof.
  intros. assert (Rc c <= Rc d + (d - c)); [|lra].
  replace (d - c) with (sum n q * (d - c)) by (rewrite q1; ring).
  unfold Rc. rewrite <- sum_scal, <- sum_plus. apply sum_le; intros y _.
  unfold cut, pos, Rmax. pose proof (q0 y).
  destruct (Rle_dec (p y - c * q y) 0), (Rle_dec (p y - d * q y) 0); nra.
Qed.
(* The mass of q off the rejected tokens lies between 0 and 1, token by token and in all. *)
Lemma off_le h x : off h x <= q x.
Proof. unfold off. pose proof (q0 x). destruct (inb x h); lra. Qed.
Lemma off_ge h x : 0 <= off h x.
Proof. unfold off. pose proof (q0 x). destruct (inb x h); lra. Qed.
Lemma mass_le h : mass h <= 1.
Proof. rewrite <- q1. apply sum_le; intros; apply off_le. Qed.
Lemma mass_ge h : 0 <= mass h.
Proof. apply sum_ge0; intros; apply off_ge. Qed.
(* The target at the level c gives the rejected tokens no mass. *)
Definition dead h c := forall x, In x h -> cut c x = 0.
(* A rejection without replacement leads to the level c + Rc c / mass: token by token, ... *)
Lemma step h c : 0 < Rc c -> 0 < mass h -> dead h c ->
  forall y, pos (at_ c y - draw h y) = cut (c + Rc c / mass h) y / Rc c.
Proof.
  intros Hc Hm Hd y. unfold at_, draw, off, inb. set (c' := c + Rc c / mass h).
  assert (Hcc : c <= c').
  { unfold c'. assert (0 < Rc c / mass h) by (apply Rdiv_lt_0_compat; auto). lra. }
  destruct (in_dec Nat.eq_dec y h).
  - assert (E: cut c y = 0) by (apply Hd; auto). assert (cut c' y = 0).
    { apply Rle_antisym. rewrite <- E. apply pos_mono. pose proof (q0 y). nra. apply pos_ge. }
    rewrite E, H. unfold Rdiv. rewrite !Rmult_0_l. unfold pos, Rmax.
    destruct (Rle_dec (0 - 0) 0); lra.
  - replace (cut c y / Rc c - q y / mass h) with ((cut c y - Rc c / mass h * q y) / Rc c)
      by (field; lra).
    rewrite pos_scale by auto. f_equal. unfold cut. rewrite pos_nest.
    + f_equal. unfold c'; ring.
    + apply Rmult_le_pos; [left; apply Rdiv_lt_0_compat; auto|auto].
Qed.
(* ... and in all. *)
Lemma res_step h c : 0 < Rc c -> 0 < mass h -> dead h c ->
  res (draw h) (at_ c) = Rc (c + Rc c / mass h) / Rc c.
Proof.
  intros. unfold res. rewrite (sum_ext n _ (fun y => cut (c + Rc c / mass h) y * / Rc c)).
  - rewrite sum_scal; auto.
  - intros; rewrite step; auto.
Qed.
(* Targets and draws have mass 1; what a test rejects is not negative and sums to the residual. *)
Lemma at1 c : 0 < Rc c -> sum n (at_ c) = 1.
Proof. intros. unfold at_, Rdiv. rewrite sum_scal. fold (Rc c). field. lra. Qed.
Lemma draw1 h : 0 < mass h -> sum n (draw h) = 1.
Proof. intros. unfold draw, Rdiv. rewrite sum_scal. fold (mass h). field. lra. Qed.
Lemma rejected d P : sum n P = 1 -> sum n d = 1 ->
  sum n (fun x => d x - Rmin (P x) (d x)) = res d P.
Proof. apply rejected_mass. Qed.
Lemma weight_ge (P d : nat -> R) x : 0 <= d x - Rmin (P x) (d x).
Proof. unfold Rmin. destruct (Rle_dec (P x) (d x)); lra. Qed.
(* The next target is that of the next level. *)
Lemma next_step h c : 0 < Rc c -> 0 < mass h -> dead h c -> 0 < Rc (c + Rc c / mass h) ->
  forall y, next (draw h) (at_ c) y = at_ (c + Rc c / mass h) y.
Proof. intros. unfold next. rewrite step, res_step by auto. unfold at_. field. lra. Qed.
(* Equal targets are rejected alike. *)
Lemma rejw_ext k : forall h P Q, (forall y, P y = Q y) -> rejw k h P = rejw k h Q.
Proof.
  induction k; simpl; intros; auto. destruct (Req_EM_T (mass h) 0); auto.
  apply sum_ext; intros. rewrite H. f_equal. apply IHk. intros. unfold next, res. rewrite H.
  f_equal. apply sum_ext; intros. rewrite H; auto.
Qed.
(* Where nothing is left to draw, no level leaves less. *)
Lemma gone h c : mass h = 0 -> dead h c -> forall d, Rc c <= Rc d.
Proof.
  intros Hm Hd d. apply sum_le; intros y Hy.
  assert (off h y = 0) by (apply (sum_zero n (off h)); auto; intros; apply off_ge).
  unfold off, inb in H. destruct (in_dec Nat.eq_dec y h).
  - rewrite Hd; auto; apply pos_ge.
  - unfold cut. rewrite H. right. f_equal. ring.
Qed.
(* From the level c on RRSw rejects k more candidates at most as often as RRS does from a level
   M <= c on. *)
Theorem bound : forall k h c M, 0 < Rc c -> dead h c -> M <= c ->
  rejw k h (at_ c) * Rc c <= Rc (it k M).
Proof.
  induction k; intros h c M Hc Hd HM; simpl.
  { pose proof (Rc_anti M c HM). lra. }
  destruct (Req_EM_T (mass h) 0) as [Hm|Hm].
  { pose proof (gone h c Hm Hd (it k (M + Rc M))). lra. }
  assert (Hm' : 0 < mass h) by (pose proof (mass_ge h); lra). set (c' := c + Rc c / mass h).
  assert (Hs : c + Rc c <= c').
  { unfold c'. assert (Rc c * 1 <= Rc c * / mass h); [|unfold Rdiv; lra].
    apply Rmult_le_compat_l; [lra|].
    rewrite <- Rinv_1. apply Rinv_le_contravar; auto. apply mass_le. }
  assert (HM' : M + Rc M <= c') by (pose proof (slope M c HM); lra).
  set (lost := fun x => draw h x - Rmin (at_ c x) (draw h x)).
  assert (lost_ge : forall x, 0 <= lost x) by (intros; apply weight_ge).
  assert (Hr : sum n lost = Rc c' / Rc c).
  { unfold lost. rewrite rejected; [|apply at1; auto|apply draw1; auto]. now apply res_step. }
  destruct (Req_dec (Rc c') 0) as [Hz|Hz].
  - rewrite (sum_ext n _ (fun _ => 0)).
    + rewrite sum_const0, Rmult_0_l. apply Rc_ge.
    + intros y Hy. fold (lost y). rewrite (sum_zero n lost); auto; [ring|].
      rewrite Hr, Hz. unfold Rdiv. ring.
  - assert (Hc' : 0 < Rc c') by (pose proof (Rc_ge c'); lra).
    assert (H : sum n (fun x => lost x * rejw k (x :: h) (next (draw h) (at_ c)))
                <= sum n (fun x => lost x * (Rc (it k (M + Rc M)) / Rc c'))).
    { apply sum_le; intros x Hx. destruct (Req_dec (lost x) 0) as [e|e]; [rewrite e; lra|].
      apply Rmult_le_compat_l; auto. rewrite (rejw_ext k (x :: h) _ (at_ c')).
      2:{ intros; apply next_step; auto. }
      assert (Hx' : rejw k (x :: h) (at_ c') * Rc c' <= Rc (it k (M + Rc M))).
      { apply IHk; auto. intros z [<-|Hz'].
        - assert (P0 : pos (at_ c x - draw h x) = 0).
          { unfold lost, Rmin in e. unfold pos, Rmax. destruct (Rle_dec (at_ c x) (draw h x));
              [|lra]. destruct (Rle_dec (at_ c x - draw h x) 0); lra. }
          rewrite step in P0; auto. fold c' in P0.
          replace (cut c' x) with (cut c' x / Rc c * Rc c) by (field; lra). rewrite P0. ring.
        - apply Rle_antisym; [|apply pos_ge]. rewrite <- (Hd z Hz'). apply pos_mono.
          pose proof (q0 z). assert (c <= c') by (pose proof (Rc_ge c); lra). nra. }
      apply Rmult_le_reg_r with (Rc c'); auto.
      replace (Rc (it k (M + Rc M)) / Rc c' * Rc c') with (Rc (it k (M + Rc M))) by (field; lra).
      exact Hx'. }
    rewrite sum_scal, Hr in H.
    apply Rle_trans with (Rc c' / Rc c * (Rc (it k (M + Rc M)) / Rc c') * Rc c).
    + apply Rmult_le_compat_r; [lra|exact H].
    + right. field. lra.
Qed.
(* With replacement a rejection leads to the level c + Rc c. *)
Lemma stepr c : 0 < Rc c -> forall y, pos (at_ c y - q y) = cut (c + Rc c) y / Rc c.
Proof.
  intros Hc y. unfold at_.
  replace (cut c y / Rc c - q y) with ((cut c y - Rc c * q y) / Rc c) by (field; lra).
  rewrite pos_scale by auto. f_equal. unfold cut. rewrite pos_nest.
  - f_equal; ring.
  - apply Rmult_le_pos; auto; lra.
Qed.
(* Equal targets are rejected alike; where nothing is left, nothing ever is. *)
Lemma rejr_ext k : forall P Q, (forall y, P y = Q y) -> rejr k P = rejr k Q.
Proof.
  induction k; simpl; intros; auto. apply sum_ext; intros. rewrite H. f_equal.
  apply IHk. intros. unfold next, res. rewrite H. f_equal. apply sum_ext; intros. rewrite H; auto.
Qed.
Lemma it_zero k : forall M, Rc M = 0 -> Rc (it k M) = 0.
Proof. induction k; simpl; intros; auto. apply IHk. rewrite H, Rplus_0_r; auto. Qed.
(* RRS rejects k more candidates with Rc M_k, relative to what is left at the first of them. *)
Theorem rrs_scalar : forall k c, 0 < Rc c -> rejr k (at_ c) * Rc c = Rc (it k c).
Proof.
  induction k; intros c Hc; simpl; [lra|].
  assert (Hr : res q (at_ c) = Rc (c + Rc c) / Rc c).
  { unfold res. rewrite (sum_ext n _ (fun y => cut (c + Rc c) y * / Rc c)).
    - rewrite sum_scal; auto.
    - intros; rewrite stepr; auto. }
  rewrite sum_scal, rejected, Hr by (auto; apply at1; auto).
  destruct (Req_dec (Rc (c + Rc c)) 0) as [Hz|Hz].
  - rewrite Hz, it_zero by auto. unfold Rdiv; ring.
  - assert (0 < Rc (c + Rc c)) by (pose proof (Rc_ge (c + Rc c)); lra). rewrite <- IHk by auto.
    rewrite (rejr_ext k (next q (at_ c)) (at_ (c + Rc c))); [field; lra|].
    intros. unfold next. rewrite stepr, Hr by auto. unfold at_. field. lra.
Qed.
(* Theorem 4.3. Multiplied by what is left, a test asks for one number. *)
Lemma test a b r : 0 < b -> 0 < r -> (b < pos a / r <-> b * r < a).
Proof.
  intros Hb Hr. assert (E : pos a / r * r = pos a) by (field; lra).
  assert (0 < b * r) by (apply Rmult_lt_0_compat; auto). unfold pos, Rmax in *. split; intros H1.
  - assert (b * r < (if Rle_dec a 0 then 0 else a) / r * r) by (apply Rmult_lt_compat_r; auto).
    destruct (Rle_dec a 0); lra.
  - apply Rmult_lt_reg_r with r; auto. destruct (Rle_dec a 0); lra.
Qed.
(* The first target is p. *)
Theorem scalar_start : forall y, at_ 0 y = p y.
Proof.
  assert (E : forall y, cut 0 y = p y).
  { intros y. unfold cut, pos. rewrite Rmult_0_l, Rminus_0_r. now apply Rmax_left. }
  intros y. unfold at_, Rc. rewrite (sum_ext n _ p) by auto. rewrite p1, E. field.
Qed.
(* With replacement: the test against the target at the level c, and the next target. *)
Theorem scalar_form_with : forall c, 0 < Rc c ->
  (forall u x, 0 < u -> 0 < q x -> (u * q x < at_ c x <-> u * Rc c * q x < p x - c * q x)) /\
  (0 < Rc (c + Rc c) -> forall y, next q (at_ c) y = at_ (c + Rc c) y).
Proof.
  intros c Hc. split.
  - intros u x Hu Hx. unfold at_, cut. rewrite test by (auto; now apply Rmult_lt_0_compat).
    replace (u * q x * Rc c) with (u * Rc c * q x) by ring. reflexivity.
  - intros Hn y. unfold next, res. rewrite stepr by auto.
    rewrite (sum_ext n _ (fun z => cut (c + Rc c) z * / Rc c)) by (intros; now apply stepr).
    rewrite sum_scal. fold (Rc (c + Rc c)). unfold at_. field. lra.
Qed.
(* Without replacement, h rejected: the same, and a rejected candidate has no mass left. *)
Theorem scalar_form_without : forall h c, 0 < Rc c -> 0 < mass h -> dead h c ->
  let next_c := c + Rc c / mass h in
  (forall u x, 0 < u -> 0 < q x -> ~ In x h ->
    (u * draw h x < at_ c x <-> u * Rc c * q x < (p x - c * q x) * mass h)) /\
  (0 < Rc next_c -> forall y, next (draw h) (at_ c) y = at_ next_c y) /\
  (forall u x, 0 < u < 1 -> 0 < q x -> ~ In x h -> ~ u * draw h x < at_ c x ->
    dead (x :: h) next_c).
Proof.
  intros h c Hc Hm Hd next_c.
  assert (T : forall u x, 0 < u -> 0 < q x -> ~ In x h ->
    (u * draw h x < at_ c x <-> u * Rc c * q x < (p x - c * q x) * mass h)).
  { intros u x Hu Hx Hh. assert (E : draw h x = q x / mass h).
    { unfold draw, off, inb. now destruct (in_dec Nat.eq_dec x h). }
    assert (0 < q x / mass h) by now apply Rdiv_lt_0_compat.
    unfold at_, cut. rewrite E, test by (auto; now apply Rmult_lt_0_compat).
    replace (u * (q x / mass h) * Rc c) with (u * Rc c * q x / mass h) by (field; lra).
    set (a := u * Rc c * q x). set (b := p x - c * q x).
    assert (Ea : a / mass h * mass h = a) by (field; lra).
    split; intros L; [rewrite <- Ea; now apply Rmult_lt_compat_r|].
    apply Rmult_lt_reg_r with (mass h); lra. }
  split; [exact T|split; [intros; now apply next_step|]].
  intros u x Hu Hx Hh Hr z [<-|Hz].
  - unfold cut, pos. apply Rmax_right.
    assert (N : (p x - c * q x) * mass h <= u * Rc c * q x).
    { apply Rnot_lt_le. intros L. apply Hr, T; auto. lra. }
    assert (0 < Rc c * q x) by (apply Rmult_lt_0_compat; auto).
    assert (u * Rc c * q x <= Rc c * q x) by nra.
    unfold next_c. apply Rmult_le_reg_r with (mass h); auto.
    replace ((p x - (c + Rc c / mass h) * q x) * mass h)
      with ((p x - c * q x) * mass h - Rc c * q x) by (field; lra). lra.
  - apply Rle_antisym; [|apply pos_ge]. rewrite <- (Hd z Hz). apply pos_mono. pose proof (q0 z).
    assert (0 < Rc c / mass h) by now apply Rdiv_lt_0_compat. unfold next_c. nra.
Qed.
(* Theorem 4.6: none of k candidates is accepted at most as often without replacement as with it. *)
Theorem without_replacement_accepts_at_least_as_often : forall k, rejw k nil p <= rejr k p.
Proof.
  intros k. assert (E : Rc 0 = 1).
  { rewrite <- p1. apply sum_ext; intros. unfold cut, pos. rewrite Rmult_0_l, Rminus_0_r.
    now apply Rmax_left. }
  rewrite (rejw_ext k nil p (at_ 0)), (rejr_ext k p (at_ 0)) by (intros; now rewrite scalar_start).
  assert (rejw k nil (at_ 0) * Rc 0 <= Rc (it k 0)) by (apply bound; try lra; intros x []).
  pose proof (rrs_scalar k 0 ltac:(lra)). rewrite E in *. lra.
Qed.
(* With one more candidate, rejecting all of them is not more likely: without replacement, ... *)
Lemma next_ge d P y : (y < n)%nat -> 0 <= next d P y.
Proof.
  intros Hy. assert (0 <= res d P) by (apply sum_ge0; intros; apply pos_ge). unfold next.
  destruct (Req_dec (res d P) 0) as [e|e].
  - replace (pos (P y - d y)) with 0; [unfold Rdiv; lra|symmetry].
    apply (sum_zero n (fun y => pos (P y - d y))); auto. intros; apply pos_ge.
  - apply Rmult_le_pos; [apply pos_ge|left; apply Rinv_0_lt_compat; lra].
Qed.
Lemma one_more_without k : forall h P, (forall y, (y < n)%nat -> 0 <= P y) ->
  rejw (S k) h P <= rejw k h P.
Proof.
  assert (U : forall k h P, rejw (S k) h P = if Req_EM_T (mass h) 0 then 1
    else sum n (fun x => (draw h x - Rmin (P x) (draw h x)) * rejw k (x :: h) (next (draw h) P)))
    by reflexivity.
  induction k as [|k IH]; intros h P HP; rewrite U; [|rewrite (U k)];
    destruct (Req_EM_T (mass h) 0) as [|Hm]; simpl; try lra.
  - assert (0 < mass h) by (pose proof (mass_ge h); lra).
    apply Rle_trans with (sum n (draw h)); [|rewrite draw1 by auto; lra].
    apply sum_le; intros x Hx. specialize (HP x Hx).
    assert (0 <= draw h x)
      by (apply Rmult_le_pos; [apply off_ge|left; now apply Rinv_0_lt_compat]).
    assert (0 <= Rmin (P x) (draw h x)) by now apply Rmin_glb. lra.
  - apply sum_le; intros x _. apply Rmult_le_compat_l; [apply weight_ge|].
    apply IH. intros; now apply next_ge.
Qed.
(* ... and with it. *)
Lemma one_more_with k : forall P, (forall y, (y < n)%nat -> 0 <= P y) ->
  rejr (S k) P <= rejr k P.
Proof.
  assert (U : forall k P, rejr (S k) P = sum n (fun x => (q x - Rmin (P x) (q x))
    * rejr k (next q P))) by reflexivity.
  induction k as [|k IH]; intros P HP; rewrite U; [|rewrite (U k)]; simpl.
  - apply Rle_trans with (sum n q); [|rewrite q1; lra]. apply sum_le; intros x Hx.
    assert (0 <= Rmin (P x) (q x)) by (apply Rmin_glb; auto). lra.
  - apply sum_le; intros x _. apply Rmult_le_compat_l; [apply weight_ge|].
    apply IH. intros; now apply next_ge.
Qed.
Theorem one_more_candidate : forall k,
  rejw (S k) nil p <= rejw k nil p /\ rejr (S k) p <= rejr k p.
Proof. intros k. split; [apply one_more_without|apply one_more_with]; auto. Qed.
(* Theorem 4.7.1: RRS accepts at least as often as drawing from p and looking whether the token was
   drafted. *)
Lemma q_le y : (y < n)%nat -> q y <= 1.
Proof. intros. rewrite <- q1. apply one_le; auto. Qed.
Theorem rrs_accepts_at_least_as_often_as_naive : forall k P,
  (forall y, 0 <= P y) -> sum n P = 1 -> rejr k P <= sum n (fun y => P y * (1 - q y) ^ k).
Proof.
  induction k; intros P HP H1; simpl.
  { right. rewrite <- H1 at 1. apply sum_ext; intros; ring. }
  rewrite sum_scal, rejected by auto.
  assert (Hr0 : 0 <= res q P) by (apply sum_ge0; intros; apply pos_ge).
  destruct (Req_dec (res q P) 0) as [e|e].
  - rewrite e, Rmult_0_l. apply sum_ge0; intros y Hy. pose proof (q_le y Hy).
    apply Rmult_le_pos; auto. apply Rmult_le_pos; [lra|]. apply pow_le; lra.
  - assert (Hn : rejr k (next q P) <= sum n (fun y => next q P y * (1 - q y) ^ k)).
    { apply IHk.
      - intros; unfold next.
        apply Rmult_le_pos; [apply pos_ge|left; apply Rinv_0_lt_compat; lra].
      - unfold next, Rdiv. rewrite sum_scal. fold (res q P). field; auto. }
    apply Rle_trans with (res q P * sum n (fun y => next q P y * (1 - q y) ^ k)).
    { apply Rmult_le_compat_l; auto. }
    rewrite Rmult_comm, <- sum_scal. apply sum_le; intros y Hy. unfold next.
    replace (pos (P y - q y) / res q P * (1 - q y) ^ k * res q P)
      with (pos (P y - q y) * (1 - q y) ^ k) by (field; auto).
    assert (P y <= 1) by (rewrite <- H1; apply one_le; auto).
    pose proof (q_le y Hy). pose proof (q0 y). specialize (HP y).
    replace (P y * ((1 - q y) * (1 - q y) ^ k)) with (P y * (1 - q y) * (1 - q y) ^ k) by ring.
    apply Rmult_le_compat_r; [apply pow_le; lra|].
    unfold pos, Rmax. destruct (Rle_dec (P y - q y) 0); nra.
Qed.
End T.
