// Small forms of the tabs. What differs from a field's default is kept in the address: form("sweep", [...])
import { h } from "./dom.js";
import { setView, state } from "./state.js";

// fields: [{ name, label, kind: "number"|"text"|"choice", value, choices: [[value, label]], title, unit }]
export function form(prefix, fields, { button, run, changed }) {
  const inputs = {};
  const key = (name) => `${prefix}_${name}`;
  const rows = fields.map((f) => {
    const now = () => state.view[key(f.name)] ?? (typeof f.value === "function" ? f.value() : f.value) ?? "";
    const keep = () => {
      setView(
        {
          [key(f.name)]:
            input.value === String((typeof f.value === "function" ? f.value() : f.value) ?? "") ? null : input.value,
        },
        true,
      );
      changed?.(f.name);
    };
    const input =
      f.kind === "choice"
        ? h(
            "select",
            { id: key(f.name), onchange: keep },
            f.choices().map(([value, label]) => h("option", { value }, label)),
          )
        : h("input", {
            id: key(f.name),
            type: f.kind === "number" ? "number" : "text",
            step: "any",
            min: f.least,
            class: f.kind === "number" ? "short" : "",
            placeholder: f.placeholder,
            spellcheck: "false",
            onchange: keep,
          });
    input.value = now();
    inputs[f.name] = { input, now };
    return h(
      "label",
      { title: f.title, for: key(f.name) },
      h("span", {}, f.label, f.unit ? ` (${f.unit})` : ""),
      input,
    );
  });
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const go = button && h("button", { class: "go", type: "submit" }, button);
  const element = h(
    "form",
    {
      class: "ask",
      autocomplete: "off",
      onsubmit: (event) => {
        event.preventDefault();
        run();
      },
    },
    rows,
    go,
    wrong,
  );
  return {
    element,
    inputs,
    go,
    value: (name) => inputs[name].input.value.trim(),
    number: (name) => (inputs[name].input.value.trim() === "" ? null : Number(inputs[name].input.value)),
    refuse(sentence) {
      wrong.textContent = sentence ?? "";
      wrong.hidden = !sentence;
    },
    refresh() {
      for (const { input, now } of Object.values(inputs)) if (document.activeElement !== input) input.value = now();
    },
  };
}

// A table whose rows may be chosen: table("Plans", ["plan", "req/s"], [{ cells: [...], pick, best }])
export function table(caption, heads, rows) {
  return h(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head) => (head ? h("th", { scope: "col" }, head) : h("td"))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {
              class: [row.best && "best", row.kind].filter(Boolean).join(" "),
              tabindex: row.pick ? "0" : null,
              title: row.pick ? "Open this plan" : null,
              onclick: row.pick,
              onkeydown:
                row.pick && ((event) => event.key === "Enter" && event.target === event.currentTarget && row.pick()),
            },
            row.cells.map((cell) => h("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}

// A job with a bar and a button that stops it: busy(host).start(job, then)
export function progress() {
  const bar = h("progress", { max: "1", "aria-label": "Progress" });
  const caption = h("span", { class: "note" });
  const stop = h("button", { type: "button" }, "Cancel");
  const element = h("div", { class: "progress", hidden: true }, bar, caption, stop);
  let act = () => null;
  stop.addEventListener("click", () => act());
  return {
    element,
    show(cancel) {
      act = cancel;
      element.hidden = false;
      bar.removeAttribute("value");
      caption.textContent = "";
    },
    update(share, text) {
      if (share > 0) bar.value = share;
      else bar.removeAttribute("value");
      caption.textContent = text ?? (share > 0 ? `${Math.round(share * 100)}%` : "");
    },
    hide() {
      element.hidden = true;
    },
  };
}
