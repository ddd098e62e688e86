// A trace of one's own: a file, and which of its columns are which. traceFile("search", changed) -> { element, body() }
import { h, say } from "./dom.js";
import { bytes } from "./format.js";

const MOST = 20e6; // bytes that the server takes
const FORMATS = "CSV or JSON lines: input_tokens, output_tokens, arrival_s; or Azure's, Mooncake's, BurstGPT's columns";
const COLUMNS =
  "Map column names, if they differ: input_tokens=n_in,output_tokens=n_out";

export function traceFile(prefix, changed = () => null) {
  let trace = null;
  const chosen = h("span", { class: "note" });
  const file = h("input", {
    type: "file",
    id: `${prefix}-trace-file`,
    class: "unseen",
    accept: ".csv,.jsonl,.json,.txt,text/csv",
    onchange: () => {
      if (file.files[0]) take(file.files[0]);
      file.value = "";
    },
  });
  const away = h("button", { type: "button", onclick: () => take(null) }, "Remove");
  const names = h("input", {
    id: `${prefix}-trace-columns`,
    placeholder: "input_tokens=n_in,output_tokens=n_out",
    spellcheck: "false",
  });
  const columns = h("label", { title: COLUMNS, for: names.id }, "Columns ", names);
  const element = h(
    "div",
    { class: "bar-of-view trace-file" },
    h("label", { class: "button", for: file.id }, "Upload a trace"),
    file,
    chosen,
    columns,
    away,
  );

  async function take(given) {
    if (given && given.size > MOST) return say(`${given.name} has ${bytes(given.size)}; a trace may have 20 MB`);
    trace = given && { name: given.name, text: await given.text() };
    chosen.textContent = trace ? `${trace.name}: lengths and arrivals from the file` : FORMATS;
    columns.hidden = away.hidden = !trace;
    if (!trace) names.value = "";
    changed(trace);
  }
  take(null);
  return {
    element,
    take,
    get trace() {
      return trace;
    },
    get columns() {
      return (trace && names.value.trim()) || null;
    },
  };
}
