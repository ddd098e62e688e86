// The page: reads its address, asks for controls and catalogue, then answers every change.
import { accuracyView } from "./accuracy.js";
import { pack, read, write } from "./address.js";
import { get, given, latest, post, Refused } from "./api.js";
import { withModel } from "./request.js";
import { copy, find, h, say, show } from "./dom.js";
import { graphView } from "./graph.js";
import { startHeadline } from "./headline.js";
import { latencyView } from "./latency.js";
import { memoryView } from "./memory.js";
import { startPanel, startPresets } from "./panel.js";
import { rooflineView } from "./roofline.js";
import { searchView } from "./search.js";
import { sensitivityView } from "./sensitivity.js";
import { simulateView } from "./simulate.js";
import { emit, on, state } from "./state.js";
import { sweepView } from "./sweep.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";

const VIEWS = [
  graphView,
  rooflineView,
  memoryView,
  latencyView,
  sweepView,
  searchView,
  simulateView,
  sensitivityView,
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

async function recall() {
  Object.assign(state, await read(state.controls), { before: null });
  emit("plan", { recalled: true });
  emit("view", {});
}

// ------------------------------------------------------------------ questions and answers

function refused(error) {
  if (!(error instanceof Refused)) throw error;
  state.refused = error;
}

const ask = latest(
  (plan, pinned) =>
    Promise.all([
      post(VIEWS.find((view) => view.id === state.view.tab)?.path ?? "/api/analyze", withModel(plan)),
      pinned && (state.before ?? post("/api/analyze", withModel(pinned))),
    ]),
  ({ value, error }, plan, pinned) => {
    if (value?.[0].feasible) state.worked = plan;
    if (error) refused(error);
    else [state.report, state.refused] = [value[0], null];
    if (value && pinned === state.pinned) state.before = pinned ? value[1] : null;
    emit("answer");
  },
);

function startAsking() {
  let moved = false; // a slider is on its way: one step of history for all of it
  on("plan", ({ live, recalled }) => {
    if (!recalled) {
      remember(moved);
      moved = Boolean(live);
    }
    ask(state.plan, state.pinned);
  });
  on("view", ({ quiet, changes }) => changes && remember(quiet || !("tab" in changes)));
  addEventListener("popstate", recall);
}

// ------------------------------------------------------------------ start

function startTools() {
  startTheme(find("theme"));
  find("share").addEventListener("click", () => copy(location.href, "link"));
  const open = find("open-plan");
  open.addEventListener("click", () => {
    const shown = document.body.classList.toggle("plan-open");
    open.setAttribute("aria-expanded", String(shown));
    if (shown) find("plan").querySelector("input")?.focus({ preventScroll: true });
  });
}

async function start() {
  startTools();
  if (given) {
    document.body.classList.add("given");
    Object.assign(state, {
      report: given.report,
      controls: given.controls ?? [],
      catalogue: { ...state.catalogue, ...given.catalogue },
    });
    startHeadline();
    startTabs(VIEWS.filter((view) => !view.asks));
    return emit("answer");
  }
  try {
    [state.controls, state.catalogue] = await Promise.all([get("/api/controls"), get("/api/catalogue")]);
  } catch (error) {
    return show(find("headline"), h("div", { class: "problem", role: "alert" }, error.message));
  }
  Object.assign(state, await read(state.controls));
  startPresets();
  startPanel();
  startHeadline();
  startTabs(VIEWS)();
  startAsking();
  ask(state.plan, state.pinned);
}

addEventListener("unhandledrejection", (event) =>
  say(`something went wrong in this page: ${event.reason?.message ?? event.reason}`),
);
start();
