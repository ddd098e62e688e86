// The state as an address: readable arguments in the query, an uploaded config.json behind the #.
//   /?model=llama-3.1-70b&gpu=h200:memory_bandwidth=4e12&tensor_parallel_size=4&tab=memory&pin=model%3D…

const VIEW = /^(tab|phase|op|block|lat_|graph_|cluster_|sweep_|search_|sim_|train_|sens_|acc_)/;

function planQuery(plan) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(plan)) {
    if (name === "config" || name === "gpu_figures") continue;
    params.set(name, value === true ? "on" : value === false ? "off" : String(value));
  }
  const figures = Object.entries(plan.gpu_figures ?? {});
  if (figures.length) params.set("gpu", `${plan.gpu ?? ""}:${figures.map(([k, v]) => `${k}=${v}`).join(",")}`);
  return params;
}

// Colons, commas and slashes may stand in a query as they are, and read better so.
const readable = (params) =>
  params.toString().replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%3D", "=");

// A word's text as the kind of value that its control has.
export function typed(text, control) {
  if (control?.kind === "switch") return text !== "off";
  return control?.kind === "number" && text.trim() !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

function planOf(params, controls) {
  const plan = {};
  for (const [name, text] of params) {
    const control = controls.find((c) => c.name === name);
    if (name === "gpu") {
      const [gpu, figures] = [text.split(":")[0], text.split(":").slice(1).join(":")];
      if (gpu) plan.gpu = gpu;
      if (figures)
        plan.gpu_figures = Object.fromEntries(
          figures
            .split(",")
            .map((pair) => pair.split("="))
            .map(([k, v]) => [k, Number.isNaN(Number(v)) ? v : Number(v)]),
        );
    } else plan[name] = typed(text, control);
  }
  return plan;
}

export function write(state, packed) {
  const params = planQuery(state.plan);
  for (const [name, value] of Object.entries(state.view)) params.set(name, value);
  const pin = state.pinned ? `pin=${encodeURIComponent(planQuery(state.pinned).toString() || "default")}` : "";
  const search = [readable(params), pin].filter(Boolean).join("&");
  const marks = [packed.plan && `config=${packed.plan}`, packed.pinned && `pinned=${packed.pinned}`]
    .filter(Boolean)
    .join("&");
  return `${location.pathname}${search ? `?${search}` : ""}${marks ? `#${marks}` : ""}`;
}

export async function read(controls) {
  const params = new URLSearchParams(location.search);
  const view = {};
  let pin = null;
  for (const [name, text] of [...params]) {
    if (name === "pin") pin = text;
    if (VIEW.test(name)) view[name] = text;
    if (name === "pin" || VIEW.test(name)) params.delete(name);
  }
  const plan = planOf(params, controls);
  const pinned = pin === null ? null : planOf(new URLSearchParams(pin === "default" ? "" : pin), controls);
  const marks = new URLSearchParams(location.hash.slice(1));
  const notes = [await addConfig(plan, marks.get("config")), pinned && (await addConfig(pinned, marks.get("pinned")))];
  return { plan, view, pinned, notes: notes.filter(Boolean) };
}

// An uploaded config.json out of a link; a note where the link was cut on its way.
async function addConfig(plan, text) {
  if (!text) return null;
  try {
    plan.config = await unpacked(text);
    return null;
  } catch {
    const name = plan.model ?? "an uploaded model";
    delete plan.model;
    return {
      text: `the config.json of ${name} in this link is damaged; the default model is shown instead.`,
      meant: [],
    };
  }
}

const pipe = async (data, stream) =>
  new Uint8Array(await new Response(new Blob([data]).stream().pipeThrough(stream)).arrayBuffer());

// A config.json of 2 kB becomes some 600 letters.
export async function pack(config) {
  const small = await pipe(new TextEncoder().encode(JSON.stringify(config)), new CompressionStream("deflate-raw"));
  return btoa(Array.from(small, (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

async function unpacked(text) {
  const raw = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(await pipe(raw, new DecompressionStream("deflate-raw"))));
}
