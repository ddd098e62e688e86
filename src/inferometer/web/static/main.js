// The page: reads its address, asks for controls and catalogue, then answers every change.
import { accuracyView } from "./accuracy.js";
import { pack, read, write } from "./address.js";
import { get, given, latest, post, Refused } from "./api.js";
import { clusterView } from "./cluster.js";
import { copy, find, h, say, show } from "./dom.js";
import { graphView } from "./graph.js";
import { startHeadline } from "./headline.js";
import { latencyView } from "./latency.js";
import { memoryView } from "./memory.js";
import { setNotes, startNotices } from "./notices.js";
import { startPanel, startPresets } from "./panel.js";
import { repaired } from "./repair.js";
import { withModel } from "./request.js";
import { rooflineView } from "./roofline.js";
import { searchView } from "./search.js";
import { sensitivityView } from "./sensitivity.js";
import { simulateView } from "./simulate.js";
import { emit, on, state } from "./state.js";
import { startStrip } from "./strip.js";
import { sweepView } from "./sweep.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";
import { trainingView } from "./training.js";

const VIEWS = [
  graphView,
  rooflineView,
  memoryView,
  clusterView,
  latencyView,
  sweepView,
  searchView,
  simulateView,
  sensitivityView,
  trainingView,
  accuracyView,
];

// ------------------------------------------------------------------ the address

let packed = { plan: "", pinned: "" };

async function remember(replace) {
  packed = {
    plan: state.plan.config ? await pack(state.plan.config) : "",
    pinned: state.pinned?.config ? await pack(state.pinned.config) : "",
  };
  const address = write(state, packed);
  if (address === location.pathname + location.search + location.hash) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
}

// The address is the plan: what cannot be read of it is noted.
async function recall() {
  const { notes, ...recalled } = await read(state.controls);
  if (recalled.view.tab && !VIEWS.some((view) => view.id === recalled.view.tab)) {
    notes.push({ text: `there is no tab ${recalled.view.tab}.`, meant: [] });
    delete recalled.view.tab;
  }
  Object.assign(state, recalled, { before: null });
  return notes;
}

// ------------------------------------------------------------------ questions and answers

function refused(error) {
  if (!(error instanceof Refused)) throw error;
  state.refused = error;
}

// { plan, report, notes } of a plan as it stands, or of what can be read of a link
async function question(plan, linked, path = "/api/analyze") {
  const analyzed = (one) => post(path, withModel(one));
  return linked ? repaired(plan, analyzed) : { plan, report: await analyzed(plan), notes: [] };
}

function adopt([now, then], plan, pinned, notes) {
  const all = [...notes, ...now.notes, ...(then?.notes ?? [])];
  if (state.plan === plan) state.plan = now.plan;
  if (pinned && state.pinned === pinned) state.pinned = then.plan;
  setNotes(all);
  if (all.length) remember(true);
}

const ask = latest(
  (plan, pinned, linked) =>
    Promise.all([
      question(plan, linked, VIEWS.find((view) => view.id === state.view.tab)?.path),
      pinned && (state.before ? { plan: pinned, report: state.before, notes: [] } : question(pinned, linked)),
    ]),
  ({ value, error }, plan, pinned, linked) => {
    if (error) refused(error);
    else {
      const same = pinned === state.pinned;
      if (linked) adopt(value, plan, pinned, linked);
      const [now, then] = value;
      if (now.report.feasible) state.worked = now.plan;
      [state.report, state.refused] = [now.report, null];
      if (same) state.before = then?.report ?? null;
    }
    emit("answer");
  },
  document.querySelector("main"),
);

function startAsking() {
  let moved = false; // a slider is on its way: one step of history for all of it
  on("plan", ({ live, recalled, notes }) => {
    if (!recalled) {
      remember(moved);
      moved = Boolean(live);
    }
    ask(state.plan, state.pinned, notes);
  });
  on("view", ({ quiet, changes }) => changes && remember(quiet || !("tab" in changes)));
  addEventListener("popstate", async () => {
    emit("plan", { recalled: true, notes: await recall() });
    emit("view", {});
  });
}

// ------------------------------------------------------------------ start

function startTools() {
  startTheme(find("theme"));
  find("share").addEventListener("click", () => copy(location.href, "link"));
  const open = find("open-plan");
  const fold = (shown) => {
    document.body.classList.toggle("plan-open", shown);
    open.setAttribute("aria-expanded", String(shown));
  };
  open.addEventListener("click", () => {
    const shown = !document.body.classList.contains("plan-open");
    fold(shown);
    if (shown) find("plan").querySelector("input")?.focus({ preventScroll: true });
  });
  find("plan").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !document.body.classList.contains("plan-open")) return;
    fold(false);
    open.focus();
  });
}

async function start() {
  startTools();
  if (given) {
    document.body.classList.add("given");
    document.querySelector("main").removeAttribute("aria-busy");
    Object.assign(state, {
      report: given.report ?? null,
      controls: given.controls ?? [],
      catalogue: { ...state.catalogue, ...given.catalogue },
    });
    startHeadline();
    startTabs(VIEWS.filter((view) => (given.training ? view.id === "training" : !view.asks)));
    startStrip();
    return emit("answer");
  }
  startNotices();
  const catalogue = get("/api/catalogue"); // lists to choose from: the first figures do not wait for them
  try {
    state.controls = await get("/api/controls");
  } catch (error) {
    catalogue.catch(() => null);
    return show(find("headline"), h("div", { class: "problem", role: "alert" }, error.message));
  }
  const notes = await recall();
  startPanel();
  startHeadline();
  startTabs(VIEWS)();
  startStrip();
  startAsking();
  ask(state.plan, state.pinned, notes);
  state.catalogue = await catalogue;
  startPresets();
  if (state.report) emit("answer");
}

addEventListener("unhandledrejection", (event) =>
  say(`an error occurred on this page:  ${event.reason?.message ?? event.reason}`),
);
start();
