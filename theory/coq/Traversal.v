(* Theorem 7.4: traversal verification is lossless, also for drafts whose shape looks back; on a
   chain it is block verification, at depth 1 RRSw.

   The page's proof goes through the tree from the leaves up. Here the tree grows child by child:
   one more child of any node, averaged over its token, leaves the text's distribution as it is. *)
Require Import Reals Lra Lia List FunctionalExtensionality.
Require Import Sums.
Require Recursive Without Block.
Import ListNotations.
Open Scope R_scope.

(* What hangs below a node: no children; or a first one with the token x and its own children,
   below, and the other children of the node, after. *)
Inductive tree := none | kid (x : nat) (below after : tree).
(* A node is the path of tokens that leads to it. The tokens of the children of v, newest first, if
   there is such a node; those of the root with its earlier, deleted children ds. *)
Fixpoint children (v : list nat) (k : tree) (ds : list nat) : option (list nat) :=
  match k, v with
  | none, [] => Some ds
  | none, _ :: _ => None
  | kid y _ after, [] => children [] after (y :: ds)
  | kid y below after, z :: u =>
      if Nat.eqb z y then children u below [] else children v after (y :: ds)
  end.
(* The tree where v has one more child, its last one. *)
Fixpoint add (v : list nat) (x : nat) (k : tree) : tree :=
  match k, v with
  | none, [] => kid x none none
  | none, _ :: _ => none
  | kid y below after, [] => kid y below (add [] x after)
  | kid y below after, z :: u =>
      if Nat.eqb z y then kid y (add u x below) after else kid y below (add v x after)
  end.

Section Traversal.
Variable n : nat.
Variables p q : list nat -> nat -> R.                 (* target and draft after a text *)
Hypothesis p0 : forall h x, 0 <= p h x.
Hypothesis q0 : forall h x, 0 <= q h x.
Hypothesis p1 : forall h, sum n (p h) = 1.
Hypothesis q1 : forall h, sum n (q h) = 1.

(* ------------------------------------------------------------------------------------ the rule *)

(* q after h without the tokens ds, normalised. *)
Definition qhat h ds := Without.draw n (q h) ds.
(* At a node of weight w and distributions P and d: the weight of its next child x, Z, and what
   becomes of w and P when this child is deleted. *)
Definition weight w (P d : nat -> R) x := ratio (w * P x) (d x).
Definition Z w (P d : nat -> R) := sum n (fun y => pos (w * P y - d y)).
Definition w_after w P d := if Req_EM_T (Z w P d + 1 - w) 0 then 1 else Z w P d / (Z w P d + 1 - w).
Definition P_after w P d y := if Req_EM_T (Z w P d) 0 then P y else pos (w * P y - d y) / Z w P d.
(* The traversal is at the node h of weight w and target P, whose children ds are deleted and whose
   remaining ones are k. The probability that it deletes all of k, and h too: *)
Fixpoint deleted k h ds w P : R :=
  match k with
  | none => 1 - w
  | kid x below after =>
      deleted below (x :: h) [] (weight w P (qhat h ds) x) (p (x :: h))
      * deleted after h (x :: ds) (w_after w P (qhat h ds)) (P_after w P (qhat h ds))
  end.
(* The mean of f over the other cases: a node is accepted, l is the path to it from h, and b is the
   bonus token. *)
Fixpoint accepted k h ds w P (f : list nat -> nat -> R) : R :=
  match k with
  | none => w * sum n (fun b => P b * f [] b)
  | kid x below after =>
      accepted below (x :: h) [] (weight w P (qhat h ds) x) (p (x :: h)) (fun l => f (x :: l))
      + deleted below (x :: h) [] (weight w P (qhat h ds) x) (p (x :: h))
        * accepted after h (x :: ds) (w_after w P (qhat h ds)) (P_after w P (qhat h ds)) f
  end.
(* The rule, on a whole tree. *)
Definition traversal k f := accepted k [] [] 1 (p []) f.
(* The probability that the text behind h begins with t, if l is kept, the bonus token is b, and
   later steps add tokens of the target. *)
Fixpoint text h (t l : list nat) (b : nat) : R :=
  match t, l with
  | [], _ => 1
  | y :: t, [] => if Nat.eqb b y then along p (y :: h) t else 0
  | y :: t, x :: l => if Nat.eqb x y then text (y :: h) t l b else 0
  end.

(* w is a probability and P a distribution: at the root, at a child x, and after deletions. *)
Definition state w P := 0 <= w <= 1 /\ (forall x, 0 <= P x) /\ sum n P = 1.
Lemma qhat_ge h ds x : 0 <= qhat h ds x.
Proof.
  unfold qhat, Without.draw. pose proof (Without.mass_ge n (q h) (q0 h) ds) as [M|<-].
  - apply Rmult_le_pos; [now apply Without.off_ge|left; now apply Rinv_0_lt_compat].
  - unfold Rdiv. rewrite Rinv_0. lra.
Qed.
Lemma state_root : state 1 (p []).
Proof. repeat split; auto; lra. Qed.
Lemma state_below w P h ds x : state w P -> state (weight w P (qhat h ds) x) (p (x :: h)).
Proof.
  intros [W [P0 _]]. repeat split; auto; apply ratio_in; auto using qhat_ge;
    apply Rmult_le_pos; auto; lra.
Qed.
Lemma state_after w P d : state w P -> state (w_after w P d) (P_after w P d).
Proof.
  intros [W [P0 P1]]. split; [|split].
  - apply (Block.passes_in n (fun _ => P) (fun _ => d) []), W.
  - now apply (Block.bonus_ge n (fun _ => P) (fun _ => d)) with (h := []).
  - now apply (Block.bonus_mass n (fun _ => P) (fun _ => d)) with (h := []).
Qed.
(* A node is accepted or all are deleted. *)
Lemma accepted_or_deleted k : forall h ds w P, state w P ->
  accepted k h ds w P (fun _ _ => 1) = 1 - deleted k h ds w P.
Proof.
  induction k as [|x b IHb a IHa]; intros h ds w P S; simpl.
  - rewrite sum_scal. destruct S as [_ [_ ->]]. ring.
  - rewrite IHb, IHa by auto using state_below, state_after. ring.
Qed.
(* The root's weight stays 1, so it is never deleted. *)
Lemma w_after_1 P d : w_after 1 P d = 1.
Proof. unfold w_after. destruct (Req_EM_T (Z 1 P d + 1 - 1) 0); auto. field. lra. Qed.
Theorem root_accepts : forall k, traversal k (fun _ _ => 1) = 1.
Proof.
  intros k. unfold traversal. rewrite accepted_or_deleted by apply state_root.
  assert (D : forall h ds P, deleted k h ds 1 P = 0); [|rewrite D; ring].
  induction k as [|x b _ a IH]; intros h ds P; simpl; [|rewrite w_after_1, IH]; ring.
Qed.

(* ------------------------------------------------------------------------------ one more child *)

(* f gives a bonus token x the value that a kept x with a bonus token of the target has on average;
   ... *)
Definition continued h (f : list nat -> nat -> R) := forall l x, (x < n)%nat ->
  f l x = sum n (fun b => p (x :: rev l ++ h) b * f (l ++ [x]) b).
Lemma continued_below h f x : continued h f -> continued (x :: h) (fun l => f (x :: l)).
Proof. intros C l y Hy. rewrite C by auto. simpl. now rewrite <- app_assoc. Qed.
(* ... so does the text. With nothing kept and a bonus token from P it is that of P, ... *)
Lemma text_from P h t : sum n P = 1 -> Forall (fun y => (y < n)%nat) t ->
  sum n (fun b => P b * text h t [] b)
  = match t with [] => 1 | y :: t => P y * along p (y :: h) t end.
Proof.
  intros P1 Ht. destruct t as [|y t]; simpl; [rewrite sum_scal, P1; ring|]. inversion Ht.
  rewrite (sum_ext n _ (fun b => if Nat.eqb b y then P b * along p (y :: h) t else 0)).
  - now rewrite (sum_pick n y (fun b => P b * along p (y :: h) t)).
  - intros b _. destruct (Nat.eqb b y); ring.
Qed.
(* ... and p in the place of P continues it. *)
Lemma text_continued t : Forall (fun y => (y < n)%nat) t -> forall h, continued h (text h t).
Proof.
  induction t as [|y t IH]; intros Ht h l x Hx; simpl; [rewrite sum_scal, p1; ring|].
  inversion Ht. destruct l as [|z l]; simpl.
  - destruct (Nat.eqb_spec x y) as [->|_]; [now rewrite text_from by auto; destruct t|].
    rewrite sum_scal. ring.
  - destruct (Nat.eqb_spec z y) as [->|_]; [|rewrite sum_scal; ring].
    rewrite IH by auto. now rewrite <- app_assoc.
Qed.

(* A child drawn from d is deleted with Z + 1 - w; if it was the last one, its parent is then
   accepted with the bonus token y with (w P - d)+. *)
Lemma then_accepted w P d y : w <= 1 -> (y < n)%nat ->
  (Z w P d + 1 - w) * (w_after w P d * P_after w P d y) = pos (w * P y - d y).
Proof.
  intros W Hy. unfold w_after, P_after. destruct (Req_EM_T (Z w P d) 0) as [e|e].
  - rewrite (sum_zero n (fun y => pos (w * P y - d y)) (fun y => pos_ge _) e y Hy).
    destruct (Req_EM_T (Z w P d + 1 - w) 0) as [e'|e']; [rewrite e'|rewrite e]; unfold Rdiv; ring.
  - assert (0 <= Z w P d) by (apply sum_ge0; intros; apply pos_ge).
    destruct (Req_EM_T (Z w P d + 1 - w) 0); [exfalso; lra|]. field. auto.
Qed.
(* With x drawn from d, the tree grown x writes on average what k writes. *)
Definition unchanged (d : nat -> R) (grown : nat -> tree) k h ds w P := forall f, continued h f ->
  sum n (fun x => d x * accepted (grown x) h ds w P f) = accepted k h ds w P f.
(* A mean of a sum and a product. *)
Lemma mixed d c e (g : nat -> R) : sum n d = 1 ->
  sum n (fun x => d x * (c + e * g x)) = c + e * sum n (fun x => d x * g x).
Proof.
  intros D. rewrite (sum_ext n _ (fun x => d x * c + d x * g x * e)) by (intros; ring).
  rewrite sum_plus, !sum_scal, D. ring.
Qed.
(* At a leaf; below or next to later children of the root, After; below its first child. *)
Lemma one_more_child k : forall v h ds w P s, state w P -> children v k ds = Some s ->
  sum n (qhat (rev v ++ h) s) = 1 ->
  unchanged (qhat (rev v ++ h) s) (fun x => add v x k) k h ds w P.
Proof.
  induction k as [|y b IHb a IHa]; intros v h ds w P s S Hs M f C.
  - destruct v; [|discriminate]. injection Hs as <-. simpl in *.
    destruct S as [W [P0 P1]]. pose proof (qhat_ge h ds) as d0. set (d := qhat h ds) in *.
    set (r := sum n (fun b => P_after w P d b * f [] b)).
    rewrite (sum_ext n _ (fun x => Rmin (w * P x) (d x) * f [] x
      + d x * (1 - weight w P d x) * (w_after w P d * r))).
    + rewrite sum_plus, sum_scal.
      replace (sum n (fun x => d x * (1 - weight w P d x))) with (Z w P d + 1 - w)
        by (symmetry; apply (Block.ended_above n (fun _ => P) (fun _ => d)) with (h := []);
            auto; lra).
      rewrite <- Rmult_assoc, (Rmult_comm _ r). unfold r.
      rewrite <- sum_scal, <- sum_plus, (Rmult_comm w), <- sum_scal.
      apply sum_ext; intros y Hy. pose proof (then_accepted w P d y ltac:(lra) Hy).
      pose proof (split (w * P y) (d y)).
      transitivity ((Rmin (w * P y) (d y) + pos (w * P y - d y)) * f [] y);
        [rewrite <- H|rewrite H0]; ring.
    + intros x Hx. pose proof (C [] x Hx) as E. simpl in E. rewrite <- E. unfold weight.
      rewrite <- drawn_and_accepted by (auto || (apply Rmult_le_pos; auto; lra)). ring.
  - assert (After : children v a (y :: ds) = Some s ->
      unchanged (qhat (rev v ++ h) s) (fun x => kid y b (add v x a)) (kid y b a) h ds w P).
    { intros E f' C'. simpl.
      rewrite <- (IHa v h (y :: ds) _ _ s (state_after w P (qhat h ds) S) E M f' C').
      now rewrite <- mixed. }
    destruct v as [|z v]; [now apply After|]. simpl in Hs |- *.
    destruct (Nat.eqb_spec z y) as [->|_]; [|now apply After].
    simpl in M. rewrite <- app_assoc in *. simpl in *.
    pose proof (state_below w P h ds y S) as Sb. set (c := weight w P (qhat h ds) y) in *.
    pose proof (IHb v (y :: h) [] _ _ s Sb Hs M) as U.
    assert (D : forall k, deleted k (y :: h) [] c (p (y :: h))
      = 1 - accepted k (y :: h) [] c (p (y :: h)) (fun _ _ => 1))
      by (intros; rewrite accepted_or_deleted by auto; ring).
    set (F := qhat (rev v ++ y :: h) s) in *. set (e := accepted a h _ _ _ f).
    rewrite (sum_ext n _ (fun x => F x * accepted (add v x b) (y :: h) [] c (p (y :: h))
        (fun l => f (y :: l))
      + F x * accepted (add v x b) (y :: h) [] c (p (y :: h)) (fun _ _ => 1) * - e + F x * e)).
    + rewrite !sum_plus, !sum_scal, M, D, (U _ (continued_below h f y C)).
      rewrite (U (fun _ _ => 1) (text_continued [] (Forall_nil _) _)). ring.
    + intros x _. simpl. rewrite D. ring.
Qed.

(* ----------------------------------------------------------------------------------- the draft *)

(* A tree is drafted move by move, and choose decides from all that was drawn before what the next
   move is, or that there is none. A coin shows 1 with probability c, else 0. child draws a token at
   the node v, for a further child: from qhat; or, where again is true, from q, as independent draws
   are, and a token that is there already is no further child. So it is too where qhat has no mass.
   A draft with (D) is drafted level by level, from left to right: a coin whose c depends on what
   (D) names says whether there is one more child, and if there is, it is a draw from qhat. *)
Inductive move := child (again : bool) (v : list nat) | coin (c : R).
(* The distribution of a draw at h, where the children ds are. *)
Definition law (again : bool) h ds :=
  if again then q h else if Req_EM_T (Without.mass n (q h) ds) 0 then q h else qhat h ds.
(* The tree after the draw x at the node v with the children ds. *)
Definition put ds v x k := if Without.inb x ds then k else add v x k.
(* The mean of F over the trees that at most m more moves make of k, after the draws drawn. *)
Fixpoint draft (choose : list nat -> option move) m drawn h ds k (F : tree -> R) : R :=
  match m, choose drawn with
  | S m, Some (child again v) =>
      match children v k ds with
      | Some s => sum n (fun x =>
          law again (rev v ++ h) s x * draft choose m (x :: drawn) h ds (put s v x k) F)
      | None => F k
      end
  | S m, Some (coin c) => c * draft choose m (1%nat :: drawn) h ds k F
      + (1 - c) * draft choose m (0%nat :: drawn) h ds k F
  | _, _ => F k
  end.
(* A draw changes nothing on average, ... *)
Lemma one_more_draw again v k h ds w P s : state w P -> children v k ds = Some s ->
  unchanged (law again (rev v ++ h) s) (fun x => put s v x k) k h ds w P.
Proof.
  intros S Hs f C. set (r := rev v ++ h). set (m := Without.mass n (q r) s).
  set (G := fun k => accepted k h ds w P f). change (accepted k h ds w P f) with (G k).
  assert (M : m <> 0 -> sum n (qhat r s) = 1).
  { intros e. unfold qhat, Without.draw, Rdiv. rewrite sum_scal. now apply Rinv_r. }
  assert (HG : m <> 0 -> sum n (fun x => qhat r s x * G (add v x k)) = G k)
    by (intros; apply one_more_child; auto).
  assert (Q : sum n (fun x => q r x * G (put s v x k)) = G k).
  { rewrite (sum_ext n _ (fun x => q r x * G k + Without.off (q r) s x * (G (add v x k) - G k))).
    2:{ intros x _. unfold put, Without.off. destruct (Without.inb x s); ring. }
    rewrite sum_plus, sum_scal, q1. destruct (Req_dec m 0) as [e|e].
    - rewrite (sum_ext n _ (fun _ => 0)), sum_const0; [ring|]. intros x Hx.
      rewrite (sum_zero n (Without.off (q r) s)); auto; [ring|].
      intros. now apply Without.off_ge.
    - rewrite (sum_ext n _ (fun x => (qhat r s x * G (add v x k) + qhat r s x * - G k) * m)).
      + rewrite sum_scal, sum_plus, sum_scal, HG, M by auto. ring.
      + intros x _. unfold qhat, Without.draw. fold m. now field. }
  unfold law. fold m. destruct again; auto. destruct (Req_EM_T m 0) as [_|e]; auto.
  rewrite <- HG at 1 by auto. apply sum_ext; intros x _. fold G.
  unfold put, qhat, Without.draw, Without.off. destruct (Without.inb x s); auto. unfold Rdiv. ring.
Qed.
(* ... nor do all of them. *)
Lemma draft_unchanged choose m : forall drawn h ds k w P f, state w P -> continued h f ->
  draft choose m drawn h ds k (fun k => accepted k h ds w P f) = accepted k h ds w P f.
Proof.
  induction m as [|m IH]; intros drawn h ds k w P f S C; simpl; auto.
  destruct (choose drawn) as [[again v|c]|]; auto; [|rewrite !IH by auto; ring].
  destruct (children v k ds) as [s|] eqn:Hs; auto.
  rewrite <- (one_more_draw again v k h ds w P s S Hs f C).
  apply sum_ext; intros x _. now rewrite IH.
Qed.
(* The claim of the page's proof, for the node h alone, whose children ds are deleted, and the draft
   of its other children: the traversal ends at h or below with probability w (t = []), the text
   behind h having the distribution P and then p. *)
Theorem ends_with_its_weight : forall choose m drawn h ds w P t, state w P ->
  Forall (fun y => (y < n)%nat) t ->
  draft choose m drawn h ds none (fun k => accepted k h ds w P (text h t))
  = w * match t with [] => 1 | y :: t => P y * along p (y :: h) t end.
Proof.
  intros choose m drawn h ds w P t S Ht. rewrite draft_unchanged by auto using text_continued.
  simpl. now rewrite text_from by (auto; apply S).
Qed.
(* Theorem 7.4. *)
Theorem traversal_is_lossless : forall choose m t, Forall (fun y => (y < n)%nat) t ->
  draft choose m [] [] [] none (fun k => traversal k (text [] t)) = along p [] t.
Proof.
  intros choose m t Ht. unfold traversal. rewrite ends_with_its_weight by auto using state_root.
  destruct t; simpl; ring.
Qed.

(* ---------------------------------------------------------------------- tries of drafted paths *)

(* The tokens of l, one below the other from the node v on, where they are not there already. *)
Fixpoint insert v (l : list nat) k : tree :=
  match l with
  | [] => k
  | x :: l => insert (v ++ [x]) l match children v k [] with Some s => put s v x k | None => k end
  end.
(* The mean of F over the trie of k and c independent paths of g tokens. *)
Fixpoint trie (c g : nat) k (F : tree -> R) : R :=
  match c with
  | O => F k
  | S c => Block.mean n q g [] (fun l => trie c g (insert [] l k) F)
  end.
Example a_trie : insert [] [0; 2; 1]%nat (insert [] [0; 1]%nat none)
  = kid 0 (kid 1 none (kid 2 (kid 1 none none) none)) none.
Proof. reflexivity. Qed.
Theorem tries_are_lossless : forall c g t, Forall (fun y => (y < n)%nat) t ->
  trie c g none (fun k => traversal k (text [] t)) = along p [] t.
Proof.
  intros c g t Ht. set (F := fun k => traversal k (text [] t)).
  assert (One : forall g v k, Block.mean n q g (rev v) (fun l => F (insert v l k)) = F k).
  { clear g. induction g as [|g IH]; intros v k; simpl; auto.
    rewrite (sum_ext n _ (fun x => q (rev v) x
      * F match children v k [] with Some s => put s v x k | None => k end)).
    - destruct (children v k []) as [s|] eqn:E; [|rewrite sum_scal, q1; ring].
      pose proof (one_more_draw true v k [] [] 1 (p []) s state_root E) as U.
      specialize (U _ (text_continued t Ht [])). now rewrite app_nil_r in U.
    - intros x _. now rewrite <- rev_unit, IH. }
  assert (All : forall k, trie c g k F = F k).
  { induction c as [|c IH]; intros k; simpl; auto. rewrite <- (One g [] k).
    apply f_equal. apply functional_extensionality; intros. apply IH. }
  rewrite All. apply (traversal_is_lossless (fun _ => None) 0 t Ht).
Qed.

(* --------------------------------------------------------------------------- two special cases *)

Fixpoint chain (l : list nat) := match l with [] => none | x :: l => kid x (chain l) none end.
(* On a chain l the number N of kept tokens and the bonus token are those of block verification. *)
Theorem chain_is_block : forall l f, traversal (chain l) f = sum (S (length l)) (fun N =>
  sum n (fun b => Block.block n p q [] 1 l N b * f (firstn N l) b)).
Proof.
  assert (Q : forall h, qhat h [] = q h).
  { intros h. apply functional_extensionality; intros x.
    unfold qhat, Without.draw, Without.mass, Without.off. simpl. rewrite q1. field. }
  assert (D : forall l h w, deleted (chain l) h [] w (p h) = Block.none n p q h w l).
  { induction l as [|x l IH]; intros h w; simpl; auto. now rewrite IH, Q. }
  unfold traversal. intros l. generalize (@nil nat) at 1 3 4 as h. generalize 1 as w.
  induction l as [|x l IH]; intros w h f.
  - simpl. rewrite Rmult_comm, <- sum_scal, Rplus_0_l. apply sum_ext; intros; ring.
  - simpl length. rewrite sum_first. cbn [chain accepted Block.block firstn].
    rewrite IH, D, Q, Rplus_comm, <- Rmult_assoc, (Rmult_comm _ (sum n _)), <- sum_scal. f_equal.
    apply sum_ext; intros b _. unfold Block.passes, Block.bonus, w_after, P_after, Block.Z, Z,
      Block.left_, weight, Block.weight. ring.
Qed.
Fixpoint flat (l : list nat) := match l with [] => none | x :: l => kid x none (flat l) end.
(* At depth 1 it is RRSw: recursive rejection with the distributions qhat of the candidates l. *)
Theorem flat_is_rrsw : forall l f, Forall (fun y => (y < n)%nat) l -> traversal (flat l) f
  = sum n (fun y => Recursive.accepts n (p []) (qhat []) (rev l) y
      * sum n (fun b => p [y] b * f [y] b))
    + sum n (fun y => Recursive.ends n (p []) (qhat []) (rev l) y * f [] y).
Proof.
  intros l f Hl. set (A := Recursive.accepts n (p []) (qhat [])).
  set (T := Recursive.left_ n (p []) (qhat [])). set (c := Recursive.rejects n (p []) (qhat [])).
  set (g := fun y => sum n (fun b => p [y] b * f [y] b)).
  assert (H : forall l ds, Forall (fun y => (y < n)%nat) l ->
    sum n (fun y => A ds y * g y) + c ds * accepted (flat l) [] ds 1 (T ds) f
    = sum n (fun y => A (rev l ++ ds) y * g y)
      + sum n (fun y => Recursive.ends n (p []) (qhat []) (rev l ++ ds) y * f [] y)).
  2:{ rewrite <- (app_nil_r (rev l)), <- H by auto. unfold A, c, T. simpl.
      rewrite (sum_ext n _ (fun _ => 0)), sum_const0 by (intros; ring). unfold traversal. ring. }
  clear l Hl. induction l as [|x l IH]; intros ds Hl.
  - simpl. unfold Recursive.ends. fold c T. rewrite Rmult_1_l, Rmult_comm, <- sum_scal. f_equal.
    apply sum_ext; intros; ring.
  - inversion Hl. simpl rev. rewrite <- app_assoc. simpl. rewrite <- IH by auto.
    assert (M : forall y, 1 * T ds y = T ds y) by (intros; ring).
    assert (E : P_after 1 (T ds) (qhat [] ds) = T (x :: ds)).
    { apply functional_extensionality; intros y. unfold T, P_after. simpl. fold T.
      unfold Recursive.residual.
      replace (Z 1 (T ds) (qhat [] ds)) with (Recursive.residual_mass n (T ds) (qhat [] ds))
        by (apply sum_ext; intros; now rewrite M).
      now rewrite M. }
    set (a := Recursive.passes n (p []) (qhat []) ds x).
    assert (W : weight 1 (T ds) (qhat [] ds) x = a) by (unfold weight; now rewrite M).
    rewrite E, w_after_1, W, (sum_ext n (fun y => A (x :: ds) y * g y)
      (fun y => A ds y * g y + if Nat.eqb y x then c ds * a * g y else 0)).
    + rewrite sum_plus, (sum_pick n x (fun y => c ds * a * g y)) by auto.
      change (c (x :: ds)) with (c ds * (1 - a)).
      change (sum n (fun b => p [x] b * f [x] b)) with (g x). ring.
    + intros y _. rewrite (Nat.eqb_sym y). unfold A. simpl. fold A c a.
      destruct (Nat.eqb x y); ring.
Qed.
End Traversal.
