(* The instances of theorems 5.4, 6.9, 8.1 and 8.3 to 8.7, computed over the rationals. *)
Require Import QArith List Bool.
Import ListNotations.
Open Scope Q_scope.

Definition dist := list Q.
Definition at_ (p : dist) (x : nat) : Q := nth x p 0.
Definition total (p : dist) : Q := fold_right Qplus 0 p.
Definition norm (p : dist) : dist := map (fun a => a / total p) p.
Definition positive (a : Q) : Q := if Qle_bool 0 a then a else 0.
Definition least (a b : Q) : Q := if Qle_bool a b then a else b.
Fixpoint zip (f : Q -> Q -> Q) (p q : dist) : dist :=
  match p, q with a :: p, b :: q => f a b :: zip f p q | _, _ => [] end.
Definition plus := zip Qplus.
Definition times (c : Q) (p : dist) := map (Qmult c) p.
Definition point (n x : nat) : dist := map (fun y => if Nat.eqb y x then 1 else 0) (seq 0 n).
Fixpoint without (q : dist) (x : nat) : dist :=
  match q, x with [] , _ => [] | _ :: q, O => 0 :: q | a :: q, S x => a :: without q x end.
(* norm((p - q)+), or p where nothing is left *)
Definition rest (p q : dist) : dist :=
  let r := zip (fun a b => positive (a - b)) p q in
  if Qeq_bool (total r) 0 then p else norm r.
Definition ratio (p q : dist) (x : nat) : Q :=
  if Qeq_bool (at_ q x) 0 then 0 else least 1 (at_ p x / at_ q x).

(* Output distribution given the candidates, and the probability that one is accepted. *)
Fixpoint rrs (xs : list nat) (p q : dist) : dist :=
  match xs with
  | [] => p
  | x :: xs => let a := ratio p q x in
      plus (times a (point (length p) x)) (times (1 - a) (rrs xs (rest p q) q))
  end.
Fixpoint rrsw (xs : list nat) (p q : dist) : dist :=
  match xs with
  | [] => p
  | x :: xs => let a := ratio p q x in
      plus (times a (point (length p) x))
           (times (1 - a) (rrsw xs (rest p q) (norm (without q x))))
  end.
Fixpoint rrs_accepts (xs : list nat) (p q : dist) : Q :=
  match xs with
  | [] => 0
  | x :: xs => let a := ratio p q x in a + (1 - a) * rrs_accepts xs (rest p q) q
  end.
Fixpoint rrsw_accepts (xs : list nat) (p q : dist) : Q :=
  match xs with
  | [] => 0
  | x :: xs => let a := ratio p q x in
      a + (1 - a) * rrsw_accepts xs (rest p q) (norm (without q x))
  end.

(* Expectations over one and two candidates. *)
Definition over (n : nat) (f : nat -> dist) : dist :=
  fold_right plus (map (fun _ => 0) (seq 0 n)) (map f (seq 0 n)).
Definition one (q : dist) (f : nat -> dist) := over (length q) (fun x => times (at_ q x) (f x)).
Definition two (q : dist) (f : nat -> nat -> dist) := one q (fun x => one q (f x)).
Definition two_without (q : dist) (f : nat -> nat -> dist) :=
  one q (fun x => one (norm (without q x)) (f x)).

Fixpoint same (p q : dist) : bool :=
  match p, q with
  | [], [] => true
  | a :: p, b :: q => Qeq_bool a b && same p q
  | _, _ => false
  end.

(* 8.1: p = q~ = (1/3, 2/3), tested with q of half the temperature: token 0 has 4/9. *)
Theorem wrong_q : same (one [1#3; 2#3] (fun x => rrs [x] [1#3; 2#3] [1#5; 4#5])) [4#9; 5#9] = true.
Proof. vm_compute; reflexivity. Qed.

(* 8.1: two candidates from q~ = (2/5, 2/5, 1/5), tested with q = (2/5, 1/5, 2/5), TV(q~, q) = 1/5:
   the output is off by 7/25. *)
Theorem wrong_q_twice :
  same (two [2#5; 2#5; 1#5] (fun x y => rrs [x; y] [0; 2#5; 3#5] [2#5; 1#5; 2#5]))
       [0; 17#25; 8#25] = true.
Proof. vm_compute; reflexivity. Qed.

(* 8.3: candidates without replacement, sorted by q: token 1 always comes out. *)
Theorem sorted :
  same (two_without [1#3; 2#3] (fun _ _ => rrsw [1%nat; 0%nat] [1#3; 2#3] [1#3; 2#3])) [0; 1] =
    true.
Proof. vm_compute; reflexivity. Qed.

(* 6.9: how many of two tokens are verified, by the largest number of tokens a second; the second
   score knows the first token. *)
Definition fastest (s1 s2 : Q) : nat :=
  let one_token := (1 + s1) / (7#4) in
  let two_tokens := (1 + s1 + s1 * s2) / (9#5) in
  if andb (Qle_bool one_token 1) (Qle_bool two_tokens 1) then 0%nat
  else if Qle_bool two_tokens one_token then 1%nat else 2%nat.
Theorem budget_by_all_scores :
  same (one [4#5; 1#5] (fun x =>
    if Nat.eqb (fastest (7#10) (if Nat.eqb x 0 then 9#10 else 1#10)) 0 then [1#2; 1#2]
    else rrs [x] [1#2; 1#2] [4#5; 1#5])) [3#5; 2#5] = true.
Proof. vm_compute; reflexivity. Qed.
(* 8.4: the better one of two draws is kept: token 1 has 8/9 and not 2/3. *)
Theorem pruned :
  same (two [1#3; 2#3] (fun x y => rrs [Nat.max x y] [1#3; 2#3] [1#3; 2#3])) [1#9; 8#9] = true.
Proof. vm_compute; reflexivity. Qed.

(* 8.5: RRS on candidates without replacement: token 1 has 1/2 and not 2/5, which RRSw gives it. *)
Theorem rrs_without_replacement :
  same (two_without [3#5; 1#5; 1#5] (fun x y => rrs [x; y] [0; 2#5; 3#5] [3#5; 1#5; 1#5]))
       [0; 1#2; 1#2] = true.
Proof. vm_compute; reflexivity. Qed.
Theorem rrsw_without_replacement :
  same (two_without [3#5; 1#5; 1#5] (fun x y => rrsw [x; y] [0; 2#5; 3#5] [3#5; 1#5; 1#5]))
       [0; 2#5; 3#5] = true.
Proof. vm_compute; reflexivity. Qed.

(* 8.5: a repetition that is dropped: token 1 has 11/25. *)
Theorem deduplicated :
  same (two [3#5; 1#5; 1#5]
         (fun x y => rrs (if Nat.eqb x y then [x] else [x; y]) [0; 2#5; 3#5] [3#5; 1#5; 1#5]))
       [0; 11#25; 14#25] = true.
Proof. vm_compute; reflexivity. Qed.

(* 8.6: the round is closed with p: token 0 has 4/9 and not 1/3. *)
Theorem residual_from_p :
  same (one [2#3; 1#3] (fun x => let a := ratio [1#3; 2#3] [2#3; 1#3] x in
         plus (times a (point 2 x)) (times (1 - a) [1#3; 2#3]))) [4#9; 5#9] = true.
Proof. vm_compute; reflexivity. Qed.

(* 8.6: two candidates tested against the same p, q taken off once: 4/9 as well. *)
Theorem no_update :
  same (two [2#3; 1#3] (fun x y =>
         let p := [1#3; 2#3] in let q := [2#3; 1#3] in
         let a := ratio p q x in let b := ratio p q y in
         plus (times a (point 2 x)) (times (1 - a)
           (plus (times b (point 2 y)) (times (1 - b) (rest p q)))))) [4#9; 5#9] = true.
Proof. vm_compute; reflexivity. Qed.

(* 8.7: the argmax tested with p/q: token 0 always comes out. *)
Theorem argmax_with_ratio : same (rrs [0%nat] [1#2; 1#2] [1#2; 1#2]) [1; 0] = true.
Proof. vm_compute; reflexivity. Qed.

(* 5.4: p = (1/2, 3/10, 1/5, 0), q = (1/10, 1/5, 3/10, 2/5): RRS accepts 13/20, where
   p(S) + 1 - Q(S) with S = {1, 2, 3} is 69/100; RRSw accepts 143/210, where it is 617/840. *)
Definition p54 : dist := [1#2; 3#10; 1#5; 0].
Definition q54 : dist := [1#10; 1#5; 3#10; 2#5].
Definition expected (draw : nat -> dist) (f : nat -> nat -> Q) : Q :=
  total (map (fun x => at_ q54 x * total (map (fun y => at_ (draw x) y * f x y) (seq 0 4)))
             (seq 0 4)).
Definition in_S (x y : nat) : Q := if Nat.leb 1 x && Nat.leb 1 y then 1 else 0.
Definition bound (draw : nat -> dist) : Q := (3#10) + (1#5) + 1 - expected draw in_S.
Theorem rrs_is_not_optimal :
  Qeq_bool (expected (fun _ => q54) (fun x y => rrs_accepts [x; y] p54 q54)) (13#20) = true /\
  Qeq_bool (bound (fun _ => q54)) (69#100) = true.
Proof. vm_compute; split; reflexivity. Qed.
Theorem rrsw_is_not_optimal :
  Qeq_bool (expected (fun x => norm (without q54 x)) (fun x y => rrsw_accepts [x; y] p54 q54))
           (143#210) = true /\
  Qeq_bool (bound (fun x => norm (without q54 x))) (617#840) = true.
Proof. vm_compute; split; reflexivity. Qed.
(* Both bounds are attained: a joint law of the candidates (row 4 x + y for x, y) and the output,
   whose marginals are those of the candidates and p, and which keeps as much. *)
Definition J_rrs : list dist := [
  [1#100; 0#1; 0#1; 0#1];
  [1#50; 0#1; 0#1; 0#1];
  [3#100; 0#1; 0#1; 0#1];
  [1#25; 0#1; 0#1; 0#1];
  [1#50; 0#1; 0#1; 0#1];
  [0#1; 1#25; 0#1; 0#1];
  [0#1; 3#50; 0#1; 0#1];
  [0#1; 2#25; 0#1; 0#1];
  [3#100; 0#1; 0#1; 0#1];
  [0#1; 3#50; 0#1; 0#1];
  [0#1; 0#1; 9#100; 0#1];
  [1#100; 0#1; 11#100; 0#1];
  [1#25; 0#1; 0#1; 0#1];
  [1#50; 3#50; 0#1; 0#1];
  [3#25; 0#1; 0#1; 0#1];
  [4#25; 0#1; 0#1; 0#1]].
Definition J_rrsw : list dist := [
  [0#1; 0#1; 0#1; 0#1];
  [1#45; 0#1; 0#1; 0#1];
  [1#30; 0#1; 0#1; 0#1];
  [2#45; 0#1; 0#1; 0#1];
  [1#40; 0#1; 0#1; 0#1];
  [0#1; 0#1; 0#1; 0#1];
  [0#1; 3#40; 0#1; 0#1];
  [0#1; 1#10; 0#1; 0#1];
  [3#70; 0#1; 0#1; 0#1];
  [0#1; 3#35; 0#1; 0#1];
  [0#1; 0#1; 0#1; 0#1];
  [0#1; 0#1; 6#35; 0#1];
  [1#15; 0#1; 0#1; 0#1];
  [79#840; 11#280; 0#1; 0#1];
  [6#35; 0#1; 1#35; 0#1];
  [0#1; 0#1; 0#1; 0#1]].
Definition pair_law (draw : nat -> dist) : dist :=
  flat_map (fun x => map (fun y => at_ q54 x * at_ (draw x) y) (seq 0 4)) (seq 0 4).
Definition nonneg (J : list dist) := forallb (forallb (Qle_bool 0)) J.
Definition first_marginal (J : list dist) : dist := map total J.
Definition second_marginal (J : list dist) : dist := fold_right plus [0;0;0;0] J.
Definition kept (J : list dist) : Q :=
  total (flat_map (fun x => map (fun y => let r := nth (4*x+y) J [] in
    if Nat.eqb x y then at_ r x else at_ r x + at_ r y) (seq 0 4)) (seq 0 4)).
Definition attains (J : list dist) draw a := nonneg J && same (first_marginal J) (pair_law draw)
  && same (second_marginal J) p54 && Qeq_bool (kept J) a.
Theorem optimum_rrs : attains J_rrs (fun _ => q54) (69#100) = true.
Proof. vm_compute; reflexivity. Qed.
Theorem optimum_rrsw : attains J_rrsw (fun x => norm (without q54 x)) (617#840) = true.
Proof. vm_compute; reflexivity. Qed.
