(* Theorems 4.5 and 6.7 (and 1.2): the steps of a lossless node rule write the target's text.

   A node is the text that leads to it, newest token first. A draft is a list of draws, each at a
   node, newest first. A draw d brings the candidates y with mem d y: one token, or a whole list of
   tokens. After each draw choose decides, from all draws of this and of earlier steps, at which
   node the next draw is made, or that there is none. (Decisions with randomness of their own are
   an average over several choose.) Then the walk begins at the root: at a node h with the draws
   ds, accepts h ds y is the probability that the rule goes down to the candidate y, and ends h ds y
   that it ends the step with the token y. *)
Require Import Reals Lra Lia List Bool.
Require Import Sums Recursive.
Import ListNotations.
Open Scope R_scope.

Section Steps.
Variables n m : nat.                                  (* tokens are 0 .. n-1, draws 0 .. m-1 *)
Variable mem : nat -> nat -> bool.                    (* whether a draw brings a token *)
Variable p : list nat -> nat -> R.                    (* the target after a text *)
Variable q : list nat -> list nat -> nat -> R.        (* the next draw, given those at its node *)
Variables accepts ends : list nat -> list nat -> nat -> R.
Definition has ds y := existsb (fun d => mem d y) ds.

(* What a node rule has to fulfil. A draw is drawn from q, whatever is drawn at other nodes. *)
Hypothesis q1 : forall h ds, sum m (q h ds) = 1.
(* Only candidates are accepted. *)
Hypothesis only_candidates : forall h ds y, has ds y = false -> accepts h ds y = 0.
(* Whether a candidate is accepted does not depend on later draws at its node. *)
Hypothesis later_draws : forall h ds d y,
  (y < n)%nat -> has ds y = true -> accepts h (d :: ds) y = accepts h ds y.
(* At a leaf the step ends with a token of the target. *)
Hypothesis leaf : forall h y, (y < n)%nat -> ends h [] y = p h y.
(* A further draw does not change the distribution of the token after the node. *)
Hypothesis fair : forall h ds y, (y < n)%nat ->
  sum m (fun d => q h ds d * (accepts h (d :: ds) y + ends h (d :: ds) y))
  = accepts h ds y + ends h ds y.

Definition draft := list (list nat * nat).
Fixpoint at_ (s : draft) (h : list nat) : list nat :=
  match s with
  | [] => []
  | (v, d) :: s => if list_eq_dec Nat.eq_dec v h then d :: at_ s h else at_ s h
  end.
(* The probability that the text goes on with t after h, if the walk down the draft s is at h, and
   next is this probability after the step's last token. *)
Fixpoint walk (next : list nat -> list nat -> R) (s : draft) (h t : list nat) : R :=
  match t with
  | [] => 1
  | y :: t => accepts h (at_ s h) y * walk next s (y :: h) t + ends h (at_ s h) y * next (y :: h) t
  end.
(* The same for a step from the text h that has drawn s and may draw k times more. *)
Fixpoint step (choose : draft -> option (list nat)) (next : draft -> list nat -> list nat -> R)
    (k : nat) (s : draft) (h t : list nat) : R :=
  match k, choose s with
  | S k, Some v => sum m (fun d => q v (at_ s v) d * step choose next k ((v, d) :: s) h t)
  | _, _ => walk (next s) s h t
  end.
Variable most : nat.                                  (* draws of one step *)
Definition past := list (list nat * draft).           (* earlier steps: their texts and drafts *)
Variable choose : past -> list nat -> draft -> option (list nat).
(* The probability that what j steps write after h begins with t. *)
Fixpoint text (j : nat) (log : past) (h t : list nat) : R :=
  match t, j with
  | [], _ => 1
  | _, O => 0
  | _, S j => step (choose log h) (fun s => text j ((h, s) :: log)) most [] h t
  end.
(* A draw is made at the root or at a node that has been drawn already. *)
Definition exists_ (root : list nat) (s : draft) v :=
  v = root \/ exists y h, v = y :: h /\ has (at_ s h) y = true.
Hypothesis chosen_exists : forall log h s v, choose log h s = Some v -> exists_ h s v.

Lemma at_self s h d : at_ ((h, d) :: s) h = d :: at_ s h.
Proof. simpl. destruct (list_eq_dec Nat.eq_dec h h); [auto|contradiction]. Qed.
Lemma at_other s v h d : v <> h -> at_ ((v, d) :: s) h = at_ s h.
Proof. intros. simpl. destruct (list_eq_dec Nat.eq_dec v h); [contradiction|auto]. Qed.
(* A node above, or none at all: the walk from h does not see a draw at a shorter text. *)
Lemma walk_below s v d t : forall h, (length v < length h)%nat ->
  walk (along p) ((v, d) :: s) h t = walk (along p) s h t.
Proof.
  induction t as [|y t IH]; intros h Hv; auto. cbn [walk].
  rewrite at_other by (intros ->; lia). rewrite IH by (simpl; lia). reflexivity.
Qed.
(* Where nothing is drawn the token is the target's, and so is the text after it. *)
Lemma walk_leaf s h t : Forall (fun y => (y < n)%nat) t -> at_ s h = [] ->
  walk (along p) s h t = along p h t.
Proof.
  intros Ht E. destruct t as [|y t]; auto. cbn [walk along]. inversion Ht.
  rewrite E, only_candidates, leaf by auto. ring.
Qed.
(* Only below what is drawn are there draws. *)
Definition grown (root : list nat) (s : draft) := forall y h,
  (length root <= length h)%nat -> has (at_ s h) y = false -> at_ s (y :: h) = [].
Lemma grown_on root s v d : grown root s -> exists_ root s v -> grown root ((v, d) :: s).
Proof.
  intros G E y h Hh. destruct (list_eq_dec Nat.eq_dec v h) as [->|Hv].
  - rewrite at_self, at_other by (intros C; apply f_equal with (f := @length nat) in C;
      simpl in C; lia).
    intros F. apply G; auto. unfold has in *. simpl in F. now destruct (mem d y).
  - rewrite at_other by auto. intros F. destruct (list_eq_dec Nat.eq_dec v (y :: h)) as [->|Hy].
    + exfalso. destruct E as [E|[z [u [E H]]]].
      * rewrite <- E in Hh. simpl in Hh. lia.
      * injection E as -> ->. congruence.
    + rewrite at_other by auto. auto.
Qed.

(* One more draw, at any node, does not change the distribution of the text. *)
Lemma one_more_draw root s v : grown root s -> forall t h,
  Forall (fun y => (y < n)%nat) t -> (length root <= length h)%nat ->
  sum m (fun d => q v (at_ s v) d * walk (along p) ((v, d) :: s) h t) = walk (along p) s h t.
Proof.
  intros G t. induction t as [|y t IH]; intros h Ht Hh; cbn [walk].
  { rewrite sum_scal, q1. ring. }
  inversion Ht as [|? ? Hy Ht']; subst.
  destruct (list_eq_dec Nat.eq_dec v h) as [->|Hv].
  - set (w := walk (along p) s (y :: h) t). set (g := along p (y :: h) t).
    pose proof (fair h (at_ s h) y Hy) as F.
    rewrite (sum_ext m _ (fun d => q h (at_ s h) d * accepts h (d :: at_ s h) y * (w - g)
      + q h (at_ s h) d * (accepts h (d :: at_ s h) y + ends h (d :: at_ s h) y) * g)).
    2:{ intros d _. rewrite at_self, walk_below by (simpl; lia). unfold w, g. ring. }
    rewrite sum_plus, !sum_scal, F.
    destruct (has (at_ s h) y) eqn:E.
    + rewrite (sum_ext m _ (fun d => q h (at_ s h) d * accepts h (at_ s h) y)).
      2:{ intros. now rewrite later_draws. }
      rewrite sum_scal, q1. ring.
    + unfold w. rewrite walk_leaf by auto. fold g. rewrite only_candidates by auto. ring.
  - rewrite (sum_ext m _ (fun d =>
      q v (at_ s v) d * walk (along p) ((v, d) :: s) (y :: h) t * accepts h (at_ s h) y
      + q v (at_ s v) d * (ends h (at_ s h) y * along p (y :: h) t))).
    2:{ intros d _. rewrite at_other by auto. ring. }
    rewrite sum_plus, !sum_scal, q1, IH by (simpl; auto). ring.
Qed.

(* A step from h, after which the text goes on as the target's. *)
Lemma step_is_target (f : draft -> option (list nat)) next k h t :
  (forall s v, f s = Some v -> exists_ h s v) -> Forall (fun y => (y < n)%nat) t ->
  (forall s h u, (length u < length t)%nat -> Forall (fun y => (y < n)%nat) u ->
    next s h u = along p h u) ->
  forall s, grown h s -> step f next k s h t = walk (along p) s h t.
Proof.
  intros Hf Ht Hn. assert (W : forall s, walk (next s) s h t = walk (along p) s h t).
  { intros s. generalize h. clear h Hf. induction t as [|y t IH]; intros h; auto. cbn [walk].
    inversion Ht. rewrite IH, Hn; auto. intros. apply Hn; simpl; auto. }
  induction k as [|k IH]; intros s G; simpl; auto.
  destruct (f s) as [v|] eqn:E; auto. rewrite <- (one_more_draw h s v) by auto.
  apply sum_ext; intros d _. rewrite IH; auto. apply grown_on; auto.
Qed.

(* Theorem 4.5 with 6.7: j steps write at least j tokens, and the first j are the target's. *)
Theorem steps_write_the_targets_text : forall j log h t, Forall (fun y => (y < n)%nat) t ->
  (length t <= j)%nat -> text j log h t = along p h t.
Proof.
  induction j as [|j IH]; intros log h t Ht Hj; destruct t as [|y t]; auto; [simpl in Hj; lia|].
  cbn [text]. rewrite step_is_target; auto.
  - apply walk_leaf; auto.
  - intros. apply chosen_exists with log. auto.
  - intros. apply IH; auto. simpl in *. lia.
  - intros z u _ _. reflexivity.
Qed.
End Steps.

(* Theorem 4.5 for every lossless rule. A draw is the whole list of a node's candidates, with the
   distribution D; the rule, given the list, accepts y with A and ends the step with y with E. *)
Section WholeLists.
Variables n m : nat.
Variable mem : nat -> nat -> bool.
Variable p : list nat -> nat -> R.
Variable D : list nat -> nat -> R.
Hypothesis D1 : forall h, sum m (D h) = 1.
Variables A E : list nat -> nat -> nat -> R.
Hypothesis A_candidates : forall h d y, mem d y = false -> A h d y = 0.
Hypothesis lossless : forall h y, (y < n)%nat ->
  sum m (fun d => D h d * (A h d y + E h d y)) = p h y.

(* A node has one list, the first that is drawn there. *)
Fixpoint list_of (ds : list nat) : option nat :=
  match ds with
  | [] => None
  | d :: ds => match list_of ds with None => Some d | Some first => Some first end
  end.
Definition list_accepts h ds y := match list_of ds with None => 0 | Some d => A h d y end.
Definition list_ends h ds y := match list_of ds with None => p h y | Some d => E h d y end.

Theorem steps_of_any_lossless_rule : forall most choose,
  (forall log h s v, choose log h s = Some v -> exists_ mem h s v) ->
  forall j log h t, Forall (fun y => (y < n)%nat) t -> (length t <= j)%nat ->
  text m (fun h _ => D h) list_accepts list_ends most choose j log h t = along p h t.
Proof.
  intros most choose Hc. apply steps_write_the_targets_text with (mem := mem); auto;
    unfold list_accepts, list_ends.
  - intros h ds y. induction ds as [|d ds IH]; simpl; auto.
    intros F. apply orb_false_iff in F. destruct F. destruct (list_of ds); auto.
  - intros h ds d y _ F. destruct ds as [|d' ds]; [discriminate|]. simpl. now destruct (list_of ds).
  - intros h ds y Hy. destruct ds as [|d' ds]; simpl; [rewrite lossless by auto; ring|].
    destruct (list_of ds); rewrite sum_scal, D1; ring.
Qed.
End WholeLists.

(* Theorem 6.7 for recursive rejection: candidates are drawn one by one at any node, in an order and
   up to a number that may depend on all that is drawn. *)
Theorem steps_of_recursive_rejection : forall n (p : list nat -> nat -> R) q,
  (forall h x, 0 <= p h x) -> (forall h, sum n (p h) = 1) ->
  (forall h ds x, 0 <= q h ds x) -> (forall h ds, sum n (q h ds) = 1) ->
  forall most choose, (forall log h s v, choose log h s = Some v -> exists_ Nat.eqb h s v) ->
  forall j log h t, Forall (fun y => (y < n)%nat) t -> (length t <= j)%nat ->
  text n q (fun h => accepts n (p h) (q h)) (fun h => ends n (p h) (q h)) most choose j log h t
  = along p h t.
Proof.
  intros n p q p0 p1 q0 q1 most choose Hc.
  apply steps_write_the_targets_text with (mem := Nat.eqb); auto.
  - intros. now apply only_candidates.
  - intros. now apply later_draws.
  - intros. unfold ends. simpl. ring.
  - intros. now apply fair.
Qed.
