// The spot-check page: a searchable table of audited rows. Plain JavaScript, no network.
// rows.js, beside the page, sets window.LETHE_ROWS.
(function () {
  "use strict";
  const PAGE = 50;
  const COLUMNS = [
    ["id", "row"],
    ["failed", "failed gates"],
    ["finding", "first finding"],
  ];

  function element(tag, attributes, text) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
    if (text !== undefined) e.textContent = text;
    return e;
  }

  // A cell with one line for each text; the first line is the important one.
  function cell(name, lines) {
    const td = element("td", { class: name });
    lines.filter(Boolean).forEach((line, i) => td.append(element("div", { class: i ? "lethe-more-about" : "" }, line)));
    return td;
  }

  function options(rows, key) {
    return [...new Set(rows.map((r) => r[key]))].filter(Boolean).sort();
  }

  function build(root, rows) {
    const search = element("input", {
      type: "search", class: "lethe-search", placeholder: "search ids, operators, gates, findings",
      "aria-label": "search rows",
    });
    const filters = ["corpus", "family", "language", "accepted"].map((key) => {
      const select = element("select", { "aria-label": key });
      select.append(element("option", { value: "" }, key + ": any"));
      for (const value of options(rows, key)) select.append(element("option", { value }, key + ": " + value));
      return [key, select];
    });
    const failing = element("input", { type: "checkbox", id: "lethe-failing" });
    const label = element("label", { for: "lethe-failing" }, " only rows with a failed gate");
    const status = element("p", { class: "lethe-count", role: "status" });
    const table = element("table", { class: "table lethe-rows" });
    const head = element("tr");
    let sorted = { key: null, up: true };
    for (const [key, title] of COLUMNS) {
      const th = element("th", { scope: "col", tabindex: "0", title: "sort" }, title);
      const sort = () => {
        sorted = { key, up: sorted.key === key ? !sorted.up : true };
        show();
      };
      th.addEventListener("click", sort);
      th.addEventListener("keydown", (e) => { if (e.key === "Enter") sort(); });
      head.append(th);
    }
    head.append(element("th", { scope: "col" }, "counterexample"));
    const body = element("tbody");
    table.append(element("thead"), body);
    table.firstChild.append(head);
    const more = element("button", { type: "button", class: "lethe-more" });
    let limit = PAGE;

    function matches(row) {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (failing.checked && !row.failed) return false;
      for (const [key, select] of filters) if (select.value && row[key] !== select.value) return false;
      return words.every((w) => row.text.includes(w));
    }

    function show() {
      const found = rows.filter(matches);
      if (sorted.key) {
        const sign = sorted.up ? 1 : -1;
        found.sort((a, b) => sign * a[sorted.key].localeCompare(b[sorted.key], "en", { numeric: true }));
      }
      body.replaceChildren();
      for (const row of found.slice(0, limit)) {
        const tr = element("tr");
        const about = [row.problem, row.family, row.language].join(", ");
        const fate = { yes: "accepted", no: "rejected by the usual check", unknown: "" }[row.accepted];
        tr.append(cell("lethe-id", [row.id, about, fate]));
        const failed = row.failed ? row.failed.split(", ") : [];
        const ended = row.status === "judged" ? "none" : row.status.replaceAll("_", " ");
        const gates = cell("lethe-failed", failed.length ? failed : [ended]);
        tr.append(gates, cell("lethe-finding", [row.finding]));
        const link = element("td");
        if (row.counterexample) link.append(element("a", { href: row.counterexample }, "show"));
        tr.append(link);
        body.append(tr);
      }
      status.textContent = found.length + " of " + rows.length + " rows";
      more.hidden = found.length <= limit;
      more.textContent = "show all " + found.length;
    }

    function again() { limit = PAGE; show(); }
    search.addEventListener("input", again);
    failing.addEventListener("change", again);
    for (const [, select] of filters) select.addEventListener("change", again);
    more.addEventListener("click", () => { limit = Infinity; show(); });
    const bar = element("div", { class: "lethe-bar" });
    bar.append(search, ...filters.map(([, s]) => s), failing, label);
    const wide = element("div", { class: "lethe-wide" });
    wide.append(table);
    root.replaceChildren(bar, status, wide, more);
    show();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const root = document.getElementById("lethe-spot-check");
    if (!root) return;
    const script = element("script", { src: "rows.js" });
    script.addEventListener("load", () => {
      const rows = (window.LETHE_ROWS || []).map((r) => ({
        ...r, text: Object.values(r).join(" ").toLowerCase(),
      }));
      build(root, rows);
    });
    script.addEventListener("error", () => {
      root.replaceChildren(element("p", {}, "rows.js is missing beside this page; build the book again."));
    });
    document.head.append(script);
  });
})();
