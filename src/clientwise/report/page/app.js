// Renders a report file (see report/output/page_json.py): titles, tables and Plotly charts. Everything
// that comes from data goes in as text, never as markup.

const PHONE = matchMedia("(max-width: 640px)");
const DARK = matchMedia("(prefers-color-scheme: dark)");
const TOUCH = matchMedia("(pointer: coarse)");
const FIRST_ROWS = 200; // of a long table; the rest comes on request, so that the page stays quick

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Make these the children of a parent; elements that stay keep focus, scroll and selection. */
function setChildren(parent, wanted) {
  wanted.forEach((child, index) => {
    const present = parent.children[index];
    if (present !== child) parent.insertBefore(child, present ?? null);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

/** Set a heading; one that repeats the heading above it is for screen readers only. */
function setHeading(heading, title, above) {
  heading.textContent = title;
  heading.classList.toggle("unseen", title === above);
}

/** Change the page; if that removed the focused element, focus the one that replaced it. */
function keepingFocus(work) {
  const before = document.activeElement;
  work();
  if (before === document.activeElement || before === document.body) return;
  const heir = before.isConnected ? before : linkTo(before.getAttribute("href"));
  heir?.focus({ preventScroll: true });
}

const linkTo = (href) => href && document.querySelector(`a[href="${CSS.escape(href)}"]`);

// ------------------------------------------------------------------------ what the page carries

/** The audits that a report file carries: JSON, compressed, in letters. */
async function unpacked(letters) {
  const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).json();
}

const report = JSON.parse(byId("document").textContent);
let carried = null;
/** What the page shows when one asks for it: audits, and other seeds. */
const onRequest = () => carried ??= unpacked(byId("audits").textContent);

async function auditOf({ kind, method, seed, number, run }) {
  const key = [method, seed, number].join("|");
  const missing = "This file has the last round and rounds with refusals; `clientwise show --round` has all.";
  return (await onRequest())[kind]?.[run ? `${run}|${key}` : key]
    ?? { title: "No audit", lead: [missing], sections: [] };
}

// ------------------------------------------------------------------------- links to audits

/** The address that opens what a cell or a point refers to; null where it refers to nothing. */
function addressOf(open) {
  if (!open) return null;
  const kind = ["round", "client"].find((name) => open[name]);
  if (!kind) return null;
  const { method, seed, run, [kind]: number } = open[kind];
  const parts = [kind, method, seed, number];
  if (run && report.isComparison) parts.push(run);
  return `#${parts.map(encodeURIComponent).join("/")}`;
}

/** The audit that a point of a trace opens; of a heat map, by its row. */
function openOf(trace, row) {
  if (!trace.meta?.open) return null;
  const { open, method, seed, run, numbers = trace.x } = trace.meta;
  return { [open]: { method, seed, [open]: numbers[row], run } };
}

/** What a hash opens; null where it is no audit. */
function targetOf(hash) {
  const [kind, method, seed, number, run] = hash.slice(1).split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  const isAudit = (kind === "round" || kind === "client") && number !== undefined;
  return isAudit ? { kind, method, seed, number, run } : null;
}

// ---------------------------------------------------------------------------------------- tables

const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 5, useGrouping: false });

const valueOf = (cell) => (cell !== null && typeof cell === "object" ? cell.value : cell);
const textOf = (cell) => {
  if (cell === null || cell === undefined) return "–";
  if (typeof cell === "object") return cell.text.replace(/ (?=[†‡]+$)/, "\u00a0"); // a name and its mark
  return typeof cell === "number" ? NUMBER.format(cell) : cell;
};
const isNothing = (value) => value === null || value === undefined || value === "";

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sorted(rows, sort) {
  if (!sort) return rows;
  const sign = sort.direction === "ascending" ? 1 : -1;
  return rows.toSorted((left, right) => {
    const [a, b] = [valueOf(left[sort.column]), valueOf(right[sort.column])];
    if (isNothing(a) || isNothing(b)) return isNothing(a) - isNothing(b); // always last
    return sign * compare(a, b);
  });
}

function cellElement(cell, column, index, isBest) {
  const kind = [column.numeric && "numeric", isBest && "best"].filter(Boolean).join(" ");
  const made = element(index ? "td" : "th", { class: kind || null, scope: index ? null : "row" });
  const address = addressOf(cell?.open);
  made.append(address ? element("a", { href: address }, textOf(cell)) : textOf(cell));
  return made;
}

function rowElement(row, columns, best = []) {
  const cells = columns.map((column, index) =>
    cellElement(row[index], column, index, best.includes(index)));
  return element("tr", {}, ...cells);
}

/** Only what scrolls needs a stop for the keyboard, and says on which side there is more. */
function showOverflow(scroll) {
  const right = scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft;
  const below = scroll.scrollHeight - scroll.clientHeight - scroll.scrollTop;
  scroll.parentElement?.classList.toggle("more-right", right > 2);
  scroll.parentElement?.classList.toggle("more-below", below > 2);
  if (right + scroll.scrollLeft > 0 || below + scroll.scrollTop > 0) scroll.tabIndex = 0;
  else scroll.removeAttribute("tabindex");
}
const overflow = new ResizeObserver((entries) => {
  for (const { target } of entries) showOverflow(target.closest(".scroll"));
});

/** A label that may break after its underscores. */
const breakable = (label) => label.replaceAll("_", "_\u200b");

function tableParts(name, columns, onSort) {
  const buttons = columns.map((column, index) => {
    const button = element("button", { type: "button" }, breakable(column.label));
    button.addEventListener("click", () => onSort(index));
    return button;
  });
  const heads = columns.map((column, index) =>
    element("th", { scope: "col", class: column.numeric ? "numeric" : null }, buttons[index]));
  const body = element("tbody");
  const widths = [columns.length > 8 && "wide", columns.length > 11 && "widest"];
  const width = widths.filter(Boolean).join(" ") || null;
  const head = element("thead", {}, element("tr", {}, ...heads));
  const table = element("table", { "aria-label": name, class: width }, head, body);
  const scroll = element("div", { class: "scroll", role: "region", "aria-label": name }, table);
  scroll.addEventListener("scroll", () => showOverflow(scroll), { passive: true });
  overflow.observe(scroll);
  overflow.observe(table); // it grows by rows, too
  return { heads, body, scroll, view: element("div", { class: "cut" }, scroll) };
}

function makeTable(level) {
  const heading = element(`h${level}`);
  const holder = element("div");
  const more = element("button", { type: "button", class: "button", hidden: true });
  const note = element("p", { class: "note" });
  const view = element("section", { class: "card table" }, heading, holder, more, note);
  let item, parts, shape, sort = null, rows = new Map(), all = false;

  function onSort(column) {
    const { numeric, lower } = item.columns[column];
    // The best first; names from A.
    const natural = numeric && !lower ? "descending" : "ascending";
    const other = natural === "ascending" ? "descending" : "ascending";
    if (sort?.column !== column) sort = { column, direction: natural };
    else sort = sort.direction === natural ? { column, direction: other } : null;
    keepingFocus(fill);
  }

  function columnsOfBest(index) {
    const ofRow = (item.best ?? []).filter(([row]) => row === index);
    return ofRow.map(([, column]) => column);
  }

  function fill() {
    parts.heads.forEach((head, index) => {
      if (sort?.column === index) head.setAttribute("aria-sort", sort.direction);
      else head.removeAttribute("aria-sort");
    });
    const shown = sorted(item.rows, sort).slice(0, all ? undefined : FIRST_ROWS);
    const best = new Map(item.rows.map((row, index) => [row, columnsOfBest(index)]));
    const before = rows;
    rows = new Map();
    for (const row of shown) { // a row that did not change keeps its element
      let key = JSON.stringify(row);
      while (rows.has(key)) key += " ";
      if (best.get(row).length) key += ` best ${best.get(row)}`;
      rows.set(key, before.get(key) ?? rowElement(row, item.columns, best.get(row)));
    }
    setChildren(parts.body, [...rows.values()]);
    more.hidden = shown.length === item.rows.length;
    more.textContent = `Show all ${item.rows.length} rows`;
  }

  more.addEventListener("click", () => {
    all = true;
    fill();
    parts.scroll.focus();
  });

  return {
    element: view,
    update(next, above) {
      item = next;
      setHeading(heading, item.title, above);
      note.textContent = item.note ?? "";
      const columns = JSON.stringify(item.columns);
      if (columns !== shape) {
        [shape, sort, rows] = [columns, null, new Map()];
        parts = tableParts(item.title, item.columns, onSort);
        holder.replaceChildren(parts.view);
      }
      fill();
    },
  };
}

// ---------------------------------------------------------------------------------------- charts

let printing = false;

function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const dark = DARK.matches && !printing;
  return {
    text: colour("--text"),
    muted: colour("--muted"),
    grid: colour("--grid"),
    card: colour("--card"),
    // Colours of Okabe and Ito that cannot be seen on the background, and what replaces them.
    swap: dark ? { "#000000": "#e6e8eb", "#0072b2": "#3b93d6" } : { "#f0e442": "#b3a100" },
    dark,
  };
}

const TAGS = /&lt;(br|\/?b|\/?i|\/?extra)&gt;/g; // of hover templates; none with attributes
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

const escaped = (text) => String(text).replace(/[&<>]/g, (sign) => ENTITIES[sign]);

/** A copy for Plotly: strings without its pseudo-HTML, colours that suit the background. */
function prepared(value, look, key = "") {
  if (typeof value === "string") {
    const swapped = look.swap[value.toLowerCase()];
    if (swapped) return swapped;
    let text = escaped(value);
    if (look.dark) text = text.replace(/^rgba\(0, ?0, ?0,/, "rgba(230,232,235,");
    return key === "hovertemplate" || key === "texttemplate" ? text.replace(TAGS, "<$1>") : text;
  }
  if (key === "meta" || value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) {
    if (typeof value[0] === "number") return value;
    return value.map((one) => prepared(one, look, key));
  }
  const entries = Object.entries(value);
  return Object.fromEntries(entries.map(([name, one]) => [name, prepared(one, look, name)]));
}

const isMapping = (value) => value && typeof value === "object" && !Array.isArray(value);

/** The usual settings with the given ones over them, level by level. */
function merged(usual, given) {
  const result = { ...usual };
  for (const [key, value] of Object.entries(given)) {
    result[key] = isMapping(usual[key]) && isMapping(value) ? merged(usual[key], value) : value;
  }
  return result;
}

/** The beginning and the end of a name, by which names differ. */
function shortened(name, length) {
  if (name.length <= length) return name;
  return `${name.slice(0, Math.ceil(length * 0.6))}…${name.slice(-Math.floor(length * 0.3))}`;
}
const legendName = (name) => shortened(name, PHONE.matches ? 24 : 40);

/** The height of a chart with its legend, which takes as many lines as its names fill. */
function heightOf({ data, layout }, width) {
  const plot = layout.height ?? (PHONE.matches ? 260 : 340);
  const named = data.filter((trace) => trace.name && trace.showlegend !== false);
  if (layout.showlegend === false || named.length < 2) return plot;
  const filled = named.reduce((sum, { name }) => sum + 65 + 7 * legendName(name).length, 0);
  return plot + 22 * Math.ceil(filled / (width || 460));
}

/** Long names on an axis of names, in at most two lines; of very many, some. */
function namesOn(axis, { data }, height) {
  const own = data.filter((trace) => !trace[`${axis}axis`]);
  const named = own.flatMap((trace) => trace[axis] ?? legendName(trace.name)); // a box has no y
  const names = [...new Set(named.map(String))];
  const room = PHONE.matches ? 14 : 26;
  if (!names.some((name) => name.length > room)) return {};
  const inLines = names.length * 34 < height ? twoLines : shortened;
  const step = axis === "y" ? Math.ceil((names.length * 17) / height) : 1;
  const shown = names.filter((_, index) => index % step === 0);
  const ticktext = shown.map((name) => escaped(inLines(name, room)).replaceAll("\n", "<br>"));
  return { tickmode: "array", tickvals: shown.map(escaped), ticktext };
}

function twoLines(name, room) {
  const cut = name.length > room ? name.lastIndexOf(" ", room) : -1;
  if (cut <= 0) return shortened(name, room);
  return `${name.slice(0, cut)}\n${shortened(name.slice(cut + 1), room)}`;
}

const CLEAR = "rgba(0,0,0,0)";

function layoutOf(item, look, width) {
  const axis = {
    automargin: true,
    gridcolor: look.grid,
    linecolor: look.grid,
    zerolinecolor: look.grid,
    tickcolor: look.grid,
    tickfont: { color: look.muted },
    title: { font: { color: look.muted, size: 12 }, standoff: 10 },
  };
  const given = prepared(item.layout, look);
  const height = heightOf(item, width);
  const axes = Object.keys(given).filter((key) => /^[xy]axis\d*$/.test(key));
  const usual = {
    width,
    margin: { l: 8, r: 12, t: 12, b: 8 },
    paper_bgcolor: CLEAR,
    plot_bgcolor: CLEAR,
    font: {
      family: getComputedStyle(document.body).fontFamily,
      size: PHONE.matches ? 11 : 12.5,
      color: look.text,
    },
    hoverlabel: {
      bgcolor: look.card,
      bordercolor: look.grid,
      font: { color: look.text },
      align: "left",
    },
    legend: {
      itemwidth: 38,
      orientation: "h",
      x: 0,
      y: 1.02,
      yanchor: "bottom",
      bgcolor: CLEAR,
    },
    dragmode: TOUCH.matches ? false : "zoom", // a finger that scrolls the page must not zoom
    uirevision: "constant", // zoom and hidden lines stay when rounds are added
    ...Object.fromEntries(axes.map((name) => [name, axis])),
  };
  const layout = { ...merged(usual, given), height };
  for (const letter of ["x", "y"]) {
    const shown = layout[`${letter}axis`];
    if (shown.type === "category") Object.assign(shown, namesOn(letter, item, height));
  }
  return layout;
}

const CONFIG = {
  displaylogo: false,
  displayModeBar: TOUCH.matches ? false : "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  toImageButtonOptions: { format: "svg" },
  doubleClickDelay: 400,
};

const charts = new Map(); // plot element -> its view

const inSight = new IntersectionObserver((entries) => {
  for (const entry of entries) charts.get(entry.target)?.see(entry.isIntersecting);
}, { rootMargin: "300px" });

const sizes = new ResizeObserver((entries) => {
  if (!printing) for (const { target } of entries) charts.get(target)?.resize();
});

function makeChart(level, prefix) {
  const captionId = `${prefix}caption-${makeChart.count = (makeChart.count ?? 0) + 1}`;
  const heading = element(`h${level}`);
  const plot = element("div", { class: "plot", role: "img", "aria-labelledby": captionId });
  const caption = element("p", { class: "caption", id: captionId });
  const numbers = element("details", {}, element("summary", {}, "As a table"));
  const all = element("input", { type: "checkbox" });
  const ranges = element("label", { class: "ranges", hidden: true }, all, "Range over the seeds");
  const words = element("figcaption", {}, caption);
  const view = element("figure", { class: "card chart" }, heading, plot, ranges, words, numbers);
  let item, seen = false, stale = true, drawnWidth = 0, queue = Promise.resolve(), pointedAt = null;

  function draw(width) {
    stale = false;
    queue = queue.then(async () => {
      if (!plot.isConnected) return;
      const look = theme();
      drawnWidth = plot.clientWidth;
      const fresh = !plot.layout;
      const traces = prepared(item.data.map(drawnTrace), look);
      await Plotly.react(plot, traces, layoutOf(item, look, width ?? drawnWidth), CONFIG);
      if (!fresh) return;
      plot.on("plotly_click", ({ points: [point] }) => follow(point));
      plot.on("plotly_hover", ({ points: [point] }) =>
        pointAt(item.data[point.curveNumber]?.legendgroup));
      plot.on("plotly_unhover", () => pointAt(null));
    }).catch((error) => {
      const reason = `This chart could not be drawn (${error.message})`;
      plot.textContent = `${reason}; its numbers are in the table below.`;
    });
    return queue;
  }

  function drawnTrace(trace, index) {
    const drawn = { ...trace };
    if (trace.name) drawn.name = legendName(trace.name);
    if (isRange(trace)) {
      drawn.visible = true;
      drawn.uid = `range${index}`;
      drawn.opacity = isShown(trace) ? 1 : 0;
    }
    return drawn;
  }

  const isRange = (trace) => trace.meta?.range;
  const isShown = (trace) => all.checked || trace.legendgroup === pointedAt;

  /** Show all ranges, or that of the line the mouse points at. The chart is not drawn again:
   * that would fire another hover event. */
  function showRanges() {
    item.data.forEach((trace, index) => {
      const drawn = isRange(trace) && plot.querySelector(`.tracerange${index}`);
      if (drawn) drawn.style.opacity = isShown(trace) ? 1 : 0;
    });
  }
  all.addEventListener("change", showRanges);

  function pointAt(group) {
    if (group === pointedAt) return;
    pointedAt = group;
    if (!all.checked) showRanges();
  }

  function follow({ curveNumber, pointNumber }) {
    const row = Array.isArray(pointNumber) ? pointNumber[0] : pointNumber;
    const address = addressOf(openOf(item.data[curveNumber], row));
    if (address) location.assign(address);
  }

  function fillNumbers() {
    if (numbers.open) {
      const table = numbersOf(item);
      const parts = tableParts(item.title, table.columns, () => {});
      parts.heads.forEach((head, index) =>
        head.replaceChildren(breakable(table.columns[index].label)));
      parts.body.append(...table.rows.map((row) => rowElement(row, table.columns)));
      numbers.replaceChildren(numbers.firstElementChild, parts.view);
    }
  }
  numbers.addEventListener("toggle", () => keepingFocus(fillNumbers));

  const self = {
    element: view,
    draw,
    see(now) {
      seen = now;
      if (seen && stale) draw();
    },
    resize() {
      if (plot.layout && plot.clientWidth && plot.clientWidth !== drawnWidth) draw();
    },
    update(next, above) {
      const before = item;
      item = next;
      setHeading(heading, item.title, above);
      caption.textContent = item.alt;
      plot.style.minHeight = `${heightOf(item, plot.clientWidth)}px`;
      const bands = item.data.filter(isRange);
      if (ranges.hidden && bands.length) all.checked = bands.some((trace) => trace.visible);
      ranges.hidden = !bands.length;
      view.classList.toggle("clickable", item.data.some((trace) => trace.meta?.open));
      if (before && drawing(before) === drawing(item)) return;
      stale = true;
      if (seen) draw();
      fillNumbers();
    },
    remove() {
      charts.delete(plot);
      inSight.unobserve(plot);
      sizes.unobserve(plot);
      if (plot.layout) Plotly.purge(plot);
    },
  };
  charts.set(plot, self);
  inSight.observe(plot);
  sizes.observe(plot);
  return self;
}

const drawing = ({ data, layout }) => JSON.stringify([data, layout]);

const titleOf = (axis) => axis.title?.text ?? "";

/** The numbers of a chart as a table: a row per x, a column per line; of a heat map, its grid. */
function numbersOf({ data, layout }) {
  const column = (label, numeric = true) => ({ label, numeric });
  const cell = (value, open) => (open ? { value, text: textOf(value), open } : value);
  const map = data.find((trace) => trace.z);
  if (map) {
    return {
      columns: [column(titleOf(layout.yaxis), false), ...map.x.map((x) => column(textOf(x)))],
      rows: map.z.map((line, row) =>
        [map.y[row], ...line.map((value) => cell(value, openOf(map, row)))]),
    };
  }
  const lines = data.filter((trace) => trace.hoverinfo !== "skip" && (trace.y ?? trace.x));
  const flat = lines.length > 0 && lines.every((trace) => trace.orientation === "h");
  const rows = new Map();
  lines.forEach((trace, index) => {
    const [keys, values] = flat ? [trace.y, trace.x] : [trace.x, trace.y];
    values.forEach((value, row) => {
      let key = keys ? keys[row] : row + 1; // the values of a box have no keys
      while (rows.get(key)?.[index + 1] !== undefined) key = `${key} `; // the same x twice
      if (!rows.has(key)) rows.set(key, [key, ...lines.map(() => undefined)]);
      rows.get(key)[index + 1] = cell(value, openOf(trace, row));
    });
  });
  const ordered = [...rows.values()];
  if (ordered.every(([key]) => typeof key === "number")) ordered.sort(([a], [b]) => a - b);
  return {
    columns: [
      column(titleOf(flat ? layout.yaxis : layout.xaxis), false),
      ...lines.map((trace) => column(trace.name)),
    ],
    rows: ordered,
  };
}

const redrawAll = (width) => Promise.all([...charts.values()].map((chart) => chart.draw(width)));

DARK.addEventListener("change", () => {
  redrawAll();
  drawCurve(byId("curve"), report.curve);
});
addEventListener("beforeprint", () => {
  printing = true;
  redrawAll(660); // a page of A4 or letter paper between its margins
});
addEventListener("afterprint", () => {
  printing = false;
  redrawAll();
});

// ------------------------------------------------------------------------------------- documents

/** Keep one view per key: make new ones, update those that stay, remove those that are gone. */
function reconcile(parent, title, views, wanted, keyOf, make) {
  const keys = new Set(wanted.map(keyOf));
  for (const [key, view] of views) {
    if (!keys.has(key)) {
      view.remove?.();
      views.delete(key);
    }
  }
  setChildren(parent, wanted.map((item) => {
    const key = keyOf(item);
    if (!views.has(key)) views.set(key, make(item));
    return views.get(key).element;
  }));
  // After they are in the page: a chart needs its width.
  for (const item of wanted) views.get(keyOf(item)).update(item, title);
}

let seeds = []; // of the document; a section that shows only one of them has a choice

function makeSection(level, prefix) {
  const heading = element(`h${level}`);
  const lead = element("p", { class: "section-lead" });
  const items = element("div", { class: "items" });
  const picker = element("select", {});
  const pick = element("label", { class: "picker", hidden: true }, "Seed", picker);
  const view = element("section", {}, heading, lead, pick, items);
  const views = new Map();
  picker.addEventListener("change", () => chooseSeed(Number(picker.value)));
  return {
    element: view,
    update(section, above) {
      view.id = `${prefix}${section.id}`;
      setHeading(heading, section.title, above);
      lead.textContent = section.lead;
      pick.hidden = section.seed === undefined || seeds.length < 2;
      if (picker.options.length !== seeds.length) {
        picker.replaceChildren(...seeds.map((seed) => element("option", {}, `${seed}`)));
      }
      picker.value = `${section.seed}`;
      reconcile(items, section.title, views, section.items, (item) => `${item.kind} ${item.id}`,
        (item) => (item.kind === "chart" ? makeChart(level + 1, prefix) : makeTable(level + 1)));
    },
    remove() {
      for (const item of views.values()) item.remove?.();
    },
  };
}

/** The curve in the head of the page, as SVG: it is there before Plotly is. */
function drawCurve(holder, item) {
  holder.hidden = !item;
  if (!item) return;
  const lines = item.data.filter((trace) => !trace.meta?.range);
  const finite = (values) => values.filter(Number.isFinite);
  const ends = (values) => [Math.min(...finite(values)), Math.max(...finite(values))];
  const [left, right] = ends(lines.flatMap((line) => line.x));
  const [low, high] = ends(lines.flatMap((line) => line.y));
  if (!Number.isFinite(low) || !Number.isFinite(left)) {
    holder.hidden = true;
    return;
  }
  const across = (x) => (100 * (x - left)) / (right - left || 1);
  const up = (y) => 2 + (96 * (high - y)) / (high - low || 1);
  const look = theme();
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const picture = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": true });
  const colourOf = ({ line }) => look.swap[line.color.toLowerCase()] ?? line.color;
  const isNamed = ({ line }) => line.color !== OTHERS;
  for (const line of lines) {
    const known = line.x.map((x, index) => [x, line.y[index]]).filter(([, y]) => Number.isFinite(y));
    const points = known.map(([x, y]) => `${across(x).toFixed(2)},${up(y).toFixed(2)}`);
    if (points.length === 1) points.push(`100,${up(known[0][1]).toFixed(2)}`); // one round: a level
    const width = isNamed(line) ? 2.5 : 1;
    picture.append(svg("polyline", { points: points.join(" "), stroke: colourOf(line), "stroke-width": width }));
  }
  const percent = item.layout.yaxis.tickformat?.includes("%");
  const shown = (y) => (percent ? `${(100 * y).toFixed(0)}%` : `${Number(y.toPrecision(3))}`);
  const scale = element("span", { class: "scale" }, element("span", {}, shown(high)), element("span", {}, shown(low)));
  const key = lines.filter(isNamed).toReversed().map((line) => {
    const name = element("span", {}, legendName(line.name));
    name.style.setProperty("--own", colourOf(line));
    return name;
  });
  const others = lines.length - key.length;
  if (others) key.push(element("span", { class: "others" }, `${others} other${others > 1 ? "s" : ""}`));
  const title = element("span", { class: "curve-title" }, `${item.title}, round ${left} to ${right}`);
  const plot = element("span", { class: "curve-plot" }, scale, picture);
  holder.setAttribute("aria-label", item.alt);
  holder.replaceChildren(title, plot, element("span", { class: "key" }, ...key));
}
const OTHERS = "#A6A6A6"; // the colour of lines that are not named: `FAINT` in report/marks.py

/** Renders documents, one after the other, into the elements whose ids begin with a prefix. */
function makePage(prefix, level, sectionPrefix) {
  const title = byId(`${prefix}title`);
  const subtitle = byId(`${prefix}subtitle`);
  const lead = byId(`${prefix}lead`);
  const data = byId(`${prefix}data`); // an audit has neither this nor a curve
  const curve = byId(`${prefix}curve`);
  const sections = byId(`${prefix}sections`);
  const views = new Map();
  return {
    show(content) {
      keepingFocus(() => {
        title.textContent = content.title;
        subtitle.textContent = content.subtitle ?? "";
        if (data) data.textContent = content.data ?? "";
        if (curve) drawCurve(curve, content.curve);
        const said = [...lead.children].map((line) => line.textContent);
        if (JSON.stringify(said) !== JSON.stringify(content.lead)) {
          lead.replaceChildren(...content.lead.map((line) => element("p", {}, line)));
        }
        reconcile(sections, content.title, views, content.sections, (section) => section.id,
          () => makeSection(level, sectionPrefix));
      });
    },
  };
}

function showContents(sections) {
  const links = sections.map(({ id, title }) => element("a", { href: `#s-${id}` }, title));
  const before = [...byId("contents").querySelectorAll("a")];
  const addresses = (all) => all.map((link) => `${link.hash} ${link.textContent}`).join();
  if (addresses(before) === addresses(links)) return;
  const entries = links.map((link) => element("li", {}, link));
  byId("contents").replaceChildren(element("ol", {}, ...entries));
  byId("contents").hidden = sections.length < 2;
  markCurrentSection();
}

/** Mark in the contents which section is being read. */
function markCurrentSection() {
  const sections = [...byId("sections").children];
  const atEnd = scrollY > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  const isReached = (section) => section.getBoundingClientRect().top < innerHeight / 3;
  const reached = sections.findLast(isReached);
  const current = atEnd ? sections.at(-1) : reached ?? sections[0];
  for (const link of byId("contents").querySelectorAll("a")) {
    const is = link.hash === `#${current?.id}`;
    if (is === link.hasAttribute("data-current")) continue;
    link.toggleAttribute("data-current", is);
    if (is) link.setAttribute("aria-current", "location");
    else link.removeAttribute("aria-current");
    // A strip of links, on a phone: bring the one in question into sight, without moving the page.
    if (is && PHONE.matches) link.closest("nav").scrollTo({ left: link.offsetLeft - 16 });
  }
}
let marking = false;
addEventListener("scroll", () => {
  if (marking) return;
  marking = true;
  requestAnimationFrame(() => {
    marking = false;
    markCurrentSection();
  });
}, { passive: true });

// ---------------------------------------------------------------------------------------- audits

const dialog = byId("audit");
let auditPage = makePage("audit-", 3, "a-");
let opener = null; // the link that opened the dialog
let opened = null; // the hash it shows

async function showAudit(target, hash) {
  const content = await auditOf(target);
  if (opened === hash) auditPage.show(content);
}

/** The hash says what is open, so that an audit can be shared, and the back button closes it. */
function followHash() {
  const target = targetOf(location.hash);
  if (!target) {
    if (dialog.open) dialog.close();
    return;
  }
  if (opened === location.hash) return;
  const depth = stepsBack();
  history.replaceState({ depth }, "");
  openDepth = depth;
  opened = location.hash;
  const title = `${target.kind === "round" ? "Round" : "Client"} ${target.number}`;
  auditPage.show({ title, lead: ["Loading …"], sections: [] });
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  showAudit(target, opened);
}
let openDepth = 0;

/** How many steps back the page without a dialog is; 0 if the page was opened with an audit. */
function stepsBack() {
  if (dialog.open) return history.state?.depth ?? openDepth + 1;
  return opener ? 1 : 0;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#']");
  if (link && !dialog.open && targetOf(link.hash)) opener = link;
});
addEventListener("hashchange", followHash);
byId("audit-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // the backdrop
});
dialog.addEventListener("close", () => {
  opened = null;
  if (targetOf(location.hash)) {
    if (openDepth > 0) history.go(-openDepth);
    else history.replaceState(null, "", location.pathname + location.search);
  }
  // The browser gives the focus back to the opener, unless another seed has replaced it meanwhile.
  const heir = opener?.isConnected ? opener : linkTo(opener?.getAttribute("href"));
  heir?.focus({ preventScroll: true });
  opener = null;
});

// -------------------------------------------------------------------------------------- the page

const page = makePage("", 2, "s-");
let chosenSeed = null;

async function chooseSeed(seed) {
  chosenSeed = seed;
  await show();
}

/** The report with the sections of the chosen seed, where they show only one. */
async function withChosenSeed() {
  const found = chosenSeed === null ? null : (await onRequest()).seed?.[chosenSeed];
  const own = new Map(found?.sections.map((section) => [section.id, section]));
  return report.sections.map((section) => own.get(section.id) ?? section);
}

async function show() {
  const turn = show.turn = (show.turn ?? 0) + 1;
  const sections = await withChosenSeed();
  if (turn !== show.turn) return; // another was chosen meanwhile
  seeds = report.seeds ?? [];
  document.title = `${report.title} · clientwise`;
  page.show({ ...report, sections });
  showContents(sections);
  byId("status").hidden = !report.state;
  byId("status").dataset.state = report.state ?? "";
  byId("status").textContent = `${report.state}, ${report.rounds} rounds`;
}

show().then(followHash);
