// The plan, left: model, machine, precision, layout, workload; everything else of the CLI folded below.
import { controlOf } from "./controls.js";
import { find, h, say, show } from "./dom.js";
import { figuresEditor } from "./figures.js";
import { bytes, count, si } from "./format.js";
import { counts, dropped } from "./kind.js";
import { emit, on, replacePlan, setPlan, state } from "./state.js";

const FIRST = [
  ["Model", ["model"]],
  ["Machine", ["gpu", "engine"]],
  ["Precision", ["quantization", "kv_cache_dtype"]],
  ["Layout", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"]],
  ["Workload", ["batch_size", "input_len", "output_len", "prefix_len", "images", "num_inference_steps"]],
];

const models = () =>
  state.catalogue.models.map((m) => ({
    name: m.name,
    label: m.label,
    detail: [m.params && count(m.params), m.family].filter(Boolean).join(" · "),
  }));
const gpus = () =>
  state.catalogue.hardware.map((g) => ({
    name: g.name,
    label: g.label,
    detail: `${bytes(g.memory)} · ${si(g.memory_bandwidth, "B/s")}`,
  }));

// ------------------------------------------------------------------ a config.json of one's own

async function uploaded(file) {
  try {
    if (file.size > 2e6) throw new Error(`${file.name} has ${bytes(file.size)}; a config.json may have 2 MB`);
    const config = JSON.parse(await file.text());
    if (config === null || typeof config !== "object" || Array.isArray(config))
      throw new Error(`${file.name} is not a JSON object`);
    const label = config._name_or_path?.split("/").at(-1) || file.name.replace(/\.json$/, "");
    setPlan({ model: label, config });
    say(`${file.name} is now the model`);
  } catch (error) {
    say(error instanceof SyntaxError ? `${file.name} is not JSON: ${error.message}` : error.message);
  }
}

function uploader(form) {
  const field = h("input", {
    type: "file",
    id: "config-file",
    accept: ".json,application/json",
    class: "unseen",
    onchange: () => {
      if (field.files[0]) uploaded(field.files[0]);
      field.value = "";
    },
  });
  const name = h("span", {});
  const away = h(
    "button",
    {
      type: "button",
      class: "back",
      "aria-label": "Remove the uploaded config.json",
      onclick: () => setPlan({ config: null, model: null }),
    },
    "✕",
  );
  const chip = h("p", { class: "chip" }, name, away);
  const element = h(
    "div",
    { class: "upload" },
    h("label", { class: "button", for: "config-file" }, "Upload or drop a config.json"),
    field,
    chip,
  );
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      form.classList.add("dropping");
    });
  }
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && form.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    form.classList.remove("dropping");
    const file = event.dataTransfer?.files[0];
    event.preventDefault();
    if (file && state.view.tab === "simulate") emit("file", file);
    else if (file && /\.json$/.test(file.name)) uploaded(file);
    else if (file) say(`${file.name}: drop a config.json here; traces go to the Simulate tab`);
  });
  return {
    element,
    refresh() {
      chip.hidden = !state.plan.config;
      name.textContent = `uploaded: ${state.plan.model}`;
    },
  };
}

// ------------------------------------------------------------------ the panel

// Another kind of model: what does not count for it is left behind.
function pickModel(name) {
  const model = state.catalogue.models.find((m) => m.name === name);
  setPlan({ ...(model ? dropped(model) : {}), model: name, config: null });
}

// Only controls that count for the model, and those that were set all the same, so that they can be taken back.
function showCounting(form, controls) {
  for (const { name, element } of controls) if (name) element.hidden = !counts(name) && !(name in state.plan);
  for (const part of form.querySelectorAll(".group"))
    part.hidden = [...part.querySelectorAll(".control")].every((control) => control.hidden);
}

function group(title, parts, open = true) {
  return h("details", { class: "group", open }, h("summary", {}, h("h2", {}, title)), parts);
}

export function startPanel() {
  const form = find("plan");
  form.addEventListener("submit", (event) => event.preventDefault());
  const byName = Object.fromEntries(state.controls.map((c) => [c.name, c]));
  const made = [];
  const make = (name) => {
    const special = {
      model: { entries: models, picked: pickModel },
      gpu: { entries: gpus, picked: (value) => setPlan({ gpu: value, gpu_figures: null }) },
    }[name];
    const control = controlOf(byName[name], special);
    made.push(control);
    return control.element;
  };
  const upload = uploader(form);
  const figures = figuresEditor();
  made.push(upload, figures);
  const shown = new Set(FIRST.flatMap(([, names]) => names));
  const groups = FIRST.map(([title, names]) =>
    group(title, [
      names.filter((n) => byName[n]).map(make),
      title === "Model" && upload.element,
      title === "Machine" && figures.element,
    ]),
  );
  const others = state.controls.filter((c) => !shown.has(c.name));
  for (const title of [...new Set(others.map((c) => c.group))]) {
    groups.push(
      group(
        `More: ${title.toLowerCase()}`,
        others.filter((c) => c.group === title).map((c) => make(c.name)),
        false,
      ),
    );
  }
  show(form, groups);
  const refresh = () => {
    made.forEach((one) => one.refresh());
    showCounting(form, made);
  };
  on("plan", refresh);
  on("answer", refresh);
  refresh();
}

export function startPresets() {
  const presets = state.catalogue.presets ?? [];
  show(
    find("presets"),
    presets.map((p) =>
      h("button", { type: "button", title: p.help ?? "", onclick: () => replacePlan(p.plan) }, p.label),
    ),
  );
}
