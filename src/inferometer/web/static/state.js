// The one state of the page: the plan, which view is open, what was answered. Each change emits an event; views listen.

export const state = {
  plan: {}, // arguments of analyze that differ from their defaults
  view: {}, // tab, phase, operator and the fields of each tab
  pinned: null, // a plan to compare with
  report: null, // the answer to the plan
  before: null, // the answer to the pinned plan
  worked: null, // the last plan that did
  refused: null, // the sentence for a plan that cannot be read, with its control
  controls: [],
  catalogue: { models: [], hardware: [], engines: [], precisions: [], usecases: [], presets: [], training: [] },
};

const listeners = { plan: [], view: [], answer: [], file: [] };

export function on(event, listener) {
  listeners[event].push(listener);
}

export function emit(event, detail) {
  listeners[event].forEach((listener) => listener(detail));
}

export const defaultOf = (name) => state.controls.find((c) => c.name === name)?.default ?? null;
export const valueOf = (name, plan = state.plan) => plan[name] ?? defaultOf(name);

// Arguments of the plan; null takes one back to its default.
// `live` while a slider moves: one step of history at its end.
export function setPlan(changes, live = false) {
  const plan = { ...state.plan };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === defaultOf(name)) delete plan[name];
    else plan[name] = value;
  }
  state.plan = plan;
  emit("plan", { live });
}

export function replacePlan(plan) {
  state.plan = { ...plan };
  emit("plan", { live: false, fresh: true });
}

export function setView(changes, quiet = false) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") delete state.view[name];
    else state.view[name] = value;
  }
  emit("view", { quiet, changes });
}

export function setPinned(plan) {
  state.pinned = plan;
  state.before = null;
  emit("plan", { live: false, pin: true });
}

// Which arguments of two plans differ: [{ name, before, now }]
export function differences(before, now) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(now)])];
  const text = (plan, name) => {
    const value = valueOf(name, plan);
    return name === "config" && value
      ? "uploaded"
      : value !== null && typeof value === "object"
        ? Object.entries(value)
            .map(([k, v]) => `${k}=${v}`)
            .join(" ")
        : String(value ?? "default");
  };
  return names
    .map((name) => ({ name, before: text(before, name), now: text(now, name) }))
    .filter((d) => d.before !== d.now);
}
