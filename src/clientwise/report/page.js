// Sorts tables, and draws charts when one comes to them. Data are text and numbers, never markup.
for (const head of document.querySelectorAll("thead th")) {
  const button = head.querySelector("button");
  const body = head.closest("table").tBodies[0];
  const given = [...body.rows];
  const valueOf = (row) => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
  button.addEventListener("click", () => {
    const ways = head.classList.contains("numeric") ? ["descending", "ascending", null] : ["ascending", "descending", null];
    const way = ways[(ways.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    if (way) head.setAttribute("aria-sort", way);
    const sign = way === "ascending" ? 1 : -1;
    const rows = !way ? given : given.toSorted((left, right) => {
      const [a, b] = [valueOf(left), valueOf(right)];
      if (a === "" || b === "") return (a === "") - (b === ""); // nothing stands last, either way
      return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    });
    body.append(...rows);
  });
}

const drawn = new Set();
function draw(plot) {
  if (drawn.has(plot) || !window.vegaEmbed) return;
  drawn.add(plot);
  const spec = JSON.parse(plot.nextElementSibling.textContent);
  const columns = Object.entries(spec.data.columns);
  const rows = (columns[0]?.[1] ?? []).map((_, place) => Object.fromEntries(columns.map(([name, own]) => [name, own[place]])));
  spec.data = { values: rows };
  return vegaEmbed(plot, spec, { ast: true, renderer: "svg", actions: false });
}
const plots = document.querySelectorAll(".plot");
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "400px" });
for (const plot of plots) seen.observe(plot);
addEventListener("beforeprint", () => plots.forEach((plot) => plot.closest("details") || draw(plot)));

const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
const current = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-15% 0px -80%" });
for (const section of document.querySelectorAll("main section")) current.observe(section);
