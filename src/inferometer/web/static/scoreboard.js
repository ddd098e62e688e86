// Our errors beside another tool's on the very same measured servers: a pair of points a part.
import { palette } from "./theme.js";

const FEWEST = 10; // servers of a part; the table has all of them
const WIDEST = 100; // per cent; what is further off is drawn at the edge, with its figure in the hover
const TOOLS = ["inferometer", "AIConfigurator"];

const median = (cell) => parseFloat(cell); // "9.6% / 12.7%": median and mean
const nameOf = (part) => part.replace(/^aggregated, (model|GPU|engine) /, "");

// Parts of the table as pairs: [{ part, servers, inferometer, AIConfigurator, cells }]
function pairs(table, metric) {
  const column = table.columns.findIndex((head) => head === `${metric}: ${TOOLS[0]}`);
  return table.rows
    .filter(([part, servers]) => part.startsWith("aggregated") && Number(servers) >= FEWEST)
    .map((row) => ({
      part: nameOf(row[0]),
      servers: Number(row[1]),
      cells: [row[column], row[column + 1]],
      ...Object.fromEntries(TOOLS.map((tool, i) => [tool, median(row[column + i])])),
    }));
}

// What a chart of one metric draws: { traces, layout, rows, captions }
export function versus(table, metric) {
  const p = palette();
  const rows = pairs(table, metric);
  const label = (row) => `${row.part} (${row.servers})`;
  const at = (value) => Math.min(value, WIDEST);
  const looks = [
    { color: p.blue, symbol: "circle" },
    { color: p.vermillion, symbol: "diamond" },
  ];
  const points = TOOLS.map((tool, i) => ({
    type: "scatter",
    mode: "markers",
    name: tool,
    x: rows.map((row) => at(row[tool])),
    y: rows.map(label),
    marker: { size: 9, ...looks[i] },
    hoverinfo: "text",
    hovertext: rows.map((row) => `<b>${label(row)}</b><br>${tool}: ${row.cells[i]} (median / mean)`),
  }));
  const between = {
    type: "scatter",
    mode: "lines",
    x: rows.flatMap((row) => [...TOOLS.map((tool) => at(row[tool])), null]),
    y: rows.flatMap((row) => [label(row), label(row), null]),
    line: { color: p.faint, width: 2 },
    hoverinfo: "skip",
    showlegend: false,
  };
  const nearer = rows.filter((row) => row[TOOLS[0]] < row[TOOLS[1]]).length;
  return {
    traces: [between, ...points],
    layout: {
      xaxis: { title: "median error", ticksuffix: "%", rangemode: "tozero" },
      yaxis: { autorange: "reversed", ticks: "" },
      hovermode: "closest",
      showlegend: true,
    },
    rows,
    captions: {
      note: `By model, GPU and engine (number of servers): ${TOOLS[0]} is nearer in ${nearer} of ${rows.length}`,
      height: 130 + 21 * rows.length,
    },
  };
}
