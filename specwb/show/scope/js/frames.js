// A trace as a list of frames, one a click: draft, score, each test, bonus token.
function frames(trace) {
  const list = [];
  trace.rounds.forEach((round, r) => {
    if (round.tokens.length > 1) list.push({ r, stage: "draft", node: 0 });
    list.push({ r, stage: "score", node: 0 });
    round.levels.forEach((level, l) => {
      const tested = level.tests.filter((test) => test.dart);
      const shown = tested.length ? tested : [decisive(level)];
      for (const test of shown) {
        if (test) list.push({ r, stage: "test", l, t: level.tests.indexOf(test), node: level.node });
      }
    });
    list.push({ r, stage: "bonus", node: round.bonus.node });
  });
  return list;
}

// the frames of a film with their captions; at: step, stage, and which of its tests
function shots(all, film) {
  return film.map(({ at, say }) => {
    const [step, stage, test = 1] = at.split(" ");
    const fits = all.filter((one) => one.r === step - 1 && one.stage === stage);
    return { ...fits[test - 1], say };
  });
}

// of a level that is decided at once, the test that a reader looks at
function decisive(level) {
  return level.tests.find((one) => one.decision === "accepted") || level.tests[0];
}

// the level and test that decided about a node, or null
function testOf(round, node) {
  for (const [l, level] of round.levels.entries()) {
    const t = level.tests.findIndex((test) => test.child === node);
    if (t >= 0) return { l, t, level, test: level.tests[t] };
  }
  return null;
}

// has the frame come to this level and test of its round?
function reached(frame, l, t, level) {
  if (frame.stage === "bonus") return true;
  if (frame.stage !== "test") return false;
  const together = !level.tests.some((test) => test.dart);
  return l < frame.l || (l === frame.l && (together || t <= frame.t));
}

// what is known of a node when the frame is shown
function stateOf(round, frame, node) {
  if (node === 0) return "root";
  const found = testOf(round, node);
  if (found && reached(frame, found.l, found.t, found.level)) {
    if (found.test.decision === "accepted" || found.test.decision === "bonus") return "accepted";
    if (found.test.decision !== "not tested") return "rejected";
  }
  return frame.stage === "bonus" ? "untested" : "draft";
}

// the tokens of the text at a frame: [text, who, whether of this round]
function written(trace, frame) {
  const list = [];
  for (let r = 0; r < frame.r; r++) list.push(...ofRound(trace.rounds[r], false));
  const round = trace.rounds[frame.r];
  const all = ofRound(round, true);
  if (frame.stage === "bonus") list.push(...all);
  if (frame.stage === "test") {
    const kept = round.levels.filter(
      (level, l) =>
        level.tests.some((test, t) => test.decision === "accepted" && reached(frame, l, t, level)),
    ).length;
    list.push(...all.slice(0, Math.min(kept, round.accepted)));
  }
  return list;
}

function ofRound(round, now) {
  const last = round.text.length - 1;
  return round.text.map(([token, text], i) => ({
    token,
    text,
    who: i < last || round.bonus.how === "cut" ? "accepted" : "bonus",
    now,
  }));
}
