(* Theorem 8.10: the text of plain decoding, whatever is drafted.

   phi is the next token of a text. A step sees its text and a drafted path, one of a tree's; it
   keeps the path as long as it spells phi's text and appends one token. *)
Require Import List Lia Arith.
Import ListNotations.

Section Exact.
Variable phi : list nat -> nat.  (* of the text so far, its first token first *)

Fixpoint plain (n : nat) (text : list nat) : list nat :=
  match n with
  | O => text
  | S n => plain n (text ++ [phi text])
  end.

Fixpoint keep (text path : list nat) : list nat :=
  match path with
  | [] => text ++ [phi text]
  | x :: rest => if Nat.eqb x (phi text) then keep (text ++ [x]) rest else text ++ [phi text]
  end.

(* The drafter may depend on everything, here on the number of the step and on the text. *)
Fixpoint decode (draft : nat -> list nat -> list nat) (steps : nat) (text : list nat) : list nat :=
  match steps with
  | O => text
  | S s => let before := decode draft s text in keep before (draft s before)
  end.

Lemma plain_sum a : forall b text, plain (a + b) text = plain b (plain a text).
Proof. induction a; simpl; intros; auto. Qed.

Lemma keep_is_plain path :
  forall text, exists k, 1 <= k <= S (length path) /\ keep text path = plain k text.
Proof.
  induction path as [|x rest IH]; simpl; intros text.
  - exists 1. split; [lia | reflexivity].
  - destruct (Nat.eqb_spec x (phi text)) as [-> | _].
    + destruct (IH (text ++ [phi text])) as [k [bounds equal]].
      exists (S k). split; [lia | exact equal].
    + exists 1. split; [lia | reflexivity].
Qed.

Theorem text_is_plain :
  forall draft steps text, exists k, steps <= k /\ decode draft steps text = plain k text.
Proof.
  intros draft steps text. induction steps as [|s IH]; simpl.
  - exists 0. split; auto.
  - destruct IH as [k [bound ->]].
    destruct (keep_is_plain (draft s (plain k text)) (plain k text)) as [j [bounds ->]].
    exists (k + j). split; [lia | now rewrite plain_sum].
Qed.

Lemma plain_appends n : forall text, exists rest, plain n text = text ++ rest /\ length rest = n.
Proof.
  induction n as [|n IH]; simpl; intros text.
  - exists []. now rewrite app_nil_r.
  - destruct (IH (text ++ [phi text])) as [rest [-> size]].
    exists (phi text :: rest). rewrite <- app_assoc. simpl. auto.
Qed.

(* Two drafters, two numbers of steps: one text is a beginning of the other. *)
Theorem texts_agree :
  forall f g m n text, exists rest,
    decode f m text = decode g n text ++ rest \/ decode g n text = decode f m text ++ rest.
Proof.
  intros f g m n text.
  destruct (text_is_plain f m text) as [a [_ ->]], (text_is_plain g n text) as [b [_ ->]].
  destruct (Nat.le_gt_cases b a) as [order | order].
  - replace a with (b + (a - b)) by lia. rewrite plain_sum.
    destruct (plain_appends (a - b) (plain b text)) as [rest [-> _]]. exists rest. auto.
  - replace b with (a + (b - a)) by lia. rewrite plain_sum.
    destruct (plain_appends (b - a) (plain a text)) as [rest [-> _]]. exists rest. auto.
Qed.
End Exact.
