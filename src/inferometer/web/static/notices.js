// What the page itself has to say, above the figures: a lost connection, another version, a link with mistakes.
import { onConnection, tryNow } from "./connection.js";
import { find, h, say, show } from "./dom.js";
import { on, replacePlan, setPlan } from "./state.js";

let connection = { lost: null, outdated: false };
let notes = []; // { text, meant: [{ text, changes }] } of the link that was opened

const button = (text, act, attributes = {}) => h("button", { type: "button", onclick: act, ...attributes }, text);

// "Did you mean h100-sxm or h100-nvl?", each a button
export function meant(choices, then = () => null) {
  if (!choices.length) return null;
  const buttons = choices.map(({ text, changes }, i) => [
    i > 0 && " or ",
    button(text, () => then(setPlan(changes)), { class: "apply" }),
  ]);
  return h("span", { class: "meant" }, " Did you mean ", buttons, "?");
}

function lost() {
  return h(
    "div",
    { class: "banner lost", id: "lost", role: "alert" },
    h("b", {}, `${connection.lost}; trying again …`),
    " The results below are from the previous plan. ",
    button("Try now", tryNow),
  );
}

const outdated = () =>
  h(
    "div",
    { class: "banner", id: "outdated", role: "alert" },
    h("b", {}, "The server has another version of this page."),
    " ",
    button("Reload", () => location.reload()),
  );

function mistakes() {
  const all = notes; // a plan that changes clears them; where one is mended, the others stay
  const others = (note) => all.filter((other) => other !== note);
  const one = (note) =>
    h(
      "li",
      {},
      note.text[0].toUpperCase(),
      note.text.slice(1),
      meant(note.meant, () => setNotes(others(note))),
    );
  return h(
    "div",
    { class: "banner", id: "mistakes", role: "status" },
    h("b", {}, "Not all of this link could be read."),
    h("ul", {}, notes.map(one)),
    h(
      "p",
      {},
      button("Start from the default plan", () => replacePlan({})),
      button("Dismiss", () => setNotes([])),
    ),
  );
}

function draw() {
  show(find("notices"), connection.lost && lost(), connection.outdated && outdated(), notes.length > 0 && mistakes());
}

// setNotes([]) clears them.
export function setNotes(changed) {
  notes = changed;
  draw();
}

export function startNotices() {
  onConnection((next) => {
    if (connection.lost && !next.lost) say("connected again");
    connection = next;
    draw();
  });
  // what was typed or chosen since is another plan; the same link again has the same mistakes
  on("plan", ({ recalled, pin }) => recalled || pin || (notes.length && setNotes([])));
}
