// What stands around a chart: its title and note, and its offers: a table, data (CSV), picture (SVG, PNG), command.
import { copy, h, save, say, show } from "./dom.js";
import { table } from "./form.js";
import { csv, spaced } from "./format.js";
import { asPng, captioned, fileName } from "./picture.js";
import { state } from "./state.js";

const SHOWN = 1000; // rows of a table; a file has all

const analysis = () => state.report?.command ?? "";

// The same command, writing its pictures where it has some: inferometer analyze … --plot pictures
const PLOTS = /^inferometer (analyze|sweep|sensitivity|search|simulate|train) (?!.*--(find-capacity|cluster)\b)/m;
const plotting = (command) => (PLOTS.test(command) ? `${command} --plot pictures` : command);

// What a file of data says of where it comes from, beside its own columns.
function withPlan(rows, command) {
  if (!state.report || !/^inferometer /m.test(command)) return rows;
  const plan = { model: state.report.model.name, gpu: state.report.device.name, command };
  return rows.map((row) => ({ ...row, ...Object.fromEntries(Object.entries(plan).filter(([key]) => !(key in row))) }));
}

const cell = (value) =>
  typeof value === "number"
    ? value.toLocaleString("en", { maximumSignificantDigits: 5 })
    : value === null || value === undefined
      ? "–"
      : typeof value === "object"
        ? JSON.stringify(value)
        : String(value);

function tableOf(rows, title) {
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const more = rows.length > SHOWN ? ` (the first ${SHOWN} of ${rows.length} rows; the CSV has all)` : "";
  const lines = rows.slice(0, SHOWN).map((row) => ({ cells: keys.map((key) => cell(row[key])) }));
  return table(`${title}${more}`, keys.map(spaced), lines);
}

// framed(host, box, { name, title, note, rows, picture, command }): picture() promises an <svg> that stands alone
export function framed(host, box, { name, title, note = "", rows, picture, command = analysis }) {
  const heading = h("h3", { hidden: !title }, title);
  const caption = h("span", { class: "note" }, note);
  const place = h("div", { class: "rows", hidden: true });
  const description = () => [heading.textContent, caption.textContent].filter(Boolean).join(". ");
  const ofPlan = command === analysis;
  const saveAs = async (format) => {
    const about = { title: heading.textContent, note: caption.textContent, command: command(), ofPlan };
    const svg = captioned(await picture(), about);
    const content = format === "svg" ? new XMLSerializer().serializeToString(svg) : await asPng(svg);
    save(fileName(name, format, about), content, "image/svg+xml");
  };
  const button = (text, help, act) =>
    h(
      "button",
      { type: "button", title: help, "aria-label": `${text}: ${help} (${name})`, disabled: true, onclick: act },
      text,
    );
  const toggle = button("Table", "as a table", () => {
    const shown = place.hidden;
    toggle.setAttribute("aria-pressed", String(shown));
    [place.hidden, box.hidden] = [!shown, shown];
    fill();
  });
  toggle.setAttribute("aria-pressed", "false");
  const fill = () => !place.hidden && show(place, tableOf(rows(), heading.textContent));
  const offers = [
    toggle,
    button("CSV", "download the data", () =>
      save(fileName(name, "csv", { command: command(), ofPlan }), csv(withPlan(rows(), command())), "text/csv"),
    ),
    button("SVG", "download the picture", () => saveAs("svg").catch((error) => say(error.message))),
    button("PNG", "download the picture", () => saveAs("png").catch((error) => say(error.message))),
    button("CLI", "copy the command", () => copy(plotting(command()), "command")),
  ];
  const element = h(
    "figure",
    { class: "chart", id: `chart-${name}` },
    h(
      "figcaption",
      {},
      h("div", {}, heading, caption),
      h("div", { class: "offers", role: "group", "aria-label": `Export ${name}` }, offers),
    ),
    box,
    place,
  );
  host.append(element);
  return {
    element,
    caption({ title: shownTitle, note: more }) {
      if (shownTitle !== undefined) heading.textContent = shownTitle;
      heading.hidden = !heading.textContent;
      if (more !== undefined) caption.textContent = more;
    },
    drawn() {
      const inside = box.querySelector("[tabindex]"); // a drawing whose parts can be reached is no picture
      box.setAttribute("role", inside ? "group" : "img");
      box.setAttribute("aria-label", description());
      offers.forEach((offer) => (offer.disabled = false));
      offers.slice(0, 2).forEach((offer) => (offer.disabled = !rows().length));
      fill();
    },
  };
}
