"use strict";
(() => {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();
  const problems = (window.reportProblems = []);

  // Tables travel as columns, names as numbers into a list; charts want rows.
  const expand = ({ columns, count }) => {
    const entries = Object.entries(columns).map(([name, column]) =>
      [name, column.codes ? column.codes.map((code) => column.values[code]) : column]);
    return Array.from({ length: count }, (_, row) => Object.fromEntries(entries.map(([name, values]) => [name, values[row]])));
  };
  const tables = Object.fromEntries(Object.entries(payload.tables).map(([name, table]) => [name, expand(table)]));

  const boxes = (kind) => [...document.querySelectorAll(`input[data-${kind}]`)];
  const chosen = (kind) => boxes(kind).filter((box) => box.checked).map((box) => box.dataset[kind]);
  const evenly = (names, most) => names.length <= most ? names
    : Array.from({ length: most }, (_, index) => names[Math.round(index * (names.length - 1) / (most - 1))]);

  const switches = () => {
    const owners = boxes("owner").length ? chosen("owner") : payload.owners;
    const methods = boxes("method").length ? chosen("method") : payload.methods;
    return { shown_methods: methods, shown_owners: owners, panel_owners: evenly(owners, payload.most_panels) };
  };

  // A chart fills its column; small multiples take as many columns as there is room for.
  const fitted = (spec, width) => {
    const copy = { ...spec, datasets: { ...spec.datasets } };
    for (const name of spec.usermeta?.tables ?? []) copy.datasets[name] = tables[name] ?? [];
    const now = switches();
    copy.params = spec.params.map((each) => (each.name in now ? { ...each, value: now[each.name] } : each));
    const panels = spec.usermeta?.panels;
    const perOwner = spec.usermeta?.per_owner;
    if (perOwner) copy.height = perOwner * Math.max(now.shown_owners.length, 1);
    if (!panels) return { ...copy, width, autosize: { type: "fit-x", contains: "padding" } };
    const axis = 76, gap = spec.spacing.column;
    const kinds = new Set(copy.datasets[spec.usermeta.tables[0]].map((row) => row[spec.facet.field])).size;
    const most = Math.min(panels.columns, panels.by_owner ? Math.max(now.panel_owners.length, 1) : kinds);
    const room = (columns) => panels.own_axes
      ? (width - axis + 14 - (columns - 1) * gap) / columns
      : (width - axis - (columns - 1) * gap) / columns;
    let columns = most;
    while (columns > 1 && room(columns) < panels.narrowest) columns -= 1;
    const count = panels.by_owner ? now.panel_owners.length : kinds;
    columns = [columns, columns - 1, columns - 2].find((each) => each > 1 && count % each === 0) ?? columns; // full rows
    const inner = Math.floor(Math.min(room(columns), 420));
    return { ...copy, columns, spec: { ...spec.spec, width: inner, height: Math.round(Math.max(100, Math.min(inner * 0.66, 220))) } };
  };

  const draw = async (figure) => {
    const place = figure.querySelector(".plot");
    const width = Math.floor(place.clientWidth);
    views.get(figure)?.finalize();
    const look = dark.matches ? "dark" : "light";
    try {
      const result = await vegaEmbed(place, fitted(payload.charts[figure.id], width), {
        renderer: "svg", ast: true, logLevel: 1, config: payload.looks[look].config, tooltip: { theme: look },
        actions: { export: true, source: false, compiled: false, editor: false },
        downloadFileName: figure.id, width: undefined,
      });
      views.set(figure, result);
      place.dataset.width = width;
      place.querySelector("svg")?.setAttribute("aria-label", figure.querySelector("h2").textContent);
    } catch (error) {
      problems.push(`${figure.id}: ${error.message}`);
      place.textContent = "This chart could not be drawn; its numbers are at the end of the page.";
    }
  };

  const figures = [...document.querySelectorAll("section.chart")];
  const drawAll = async () => { for (const figure of figures) await draw(figure); };

  // These change their size with the owners that are shown, so they are drawn anew.
  const sizeChanges = ({ usermeta }) => usermeta?.per_owner || usermeta?.panels?.by_owner;
  const update = async () => {
    const now = switches();
    for (const [figure, { view }] of views) {
      if (sizeChanges(payload.charts[figure.id])) { await draw(figure); continue; }
      for (const [name, value] of Object.entries(now)) view.signal(name, value);
      await view.runAsync();
    }
    const count = document.getElementById("owner-count");
    if (count) count.textContent = `${now.shown_owners.length} of ${payload.owners.length}`;
    document.body.dataset.updates = Number(document.body.dataset.updates ?? 0) + 1;
  };

  const paint = () => {
    const colours = payload.looks[dark.matches ? "dark" : "light"].colours;
    document.querySelectorAll("[data-colour]").forEach((each) => each.style.setProperty("--c", colours[each.dataset.colour]));
  };

  document.getElementById("switches")?.addEventListener("change", (event) => {
    if (event.target.matches("input[type=checkbox]")) update();
  });
  document.querySelectorAll("button[data-set]").forEach((button) => button.addEventListener("click", () => {
    boxes("owner").forEach((box) => { if (!box.closest("label").hidden) box.checked = button.dataset.set === "on"; });
    update();
  }));
  document.getElementById("find-owner")?.addEventListener("input", (event) => {
    const words = event.target.value.trim().toLowerCase();
    boxes("owner").forEach((box) => { box.closest("label").hidden = !box.dataset.owner.toLowerCase().includes(words); });
  });
  document.addEventListener("keydown", (event) => {
    const open = document.querySelector("details.pick[open]");
    if (event.key === "Escape" && open) { open.open = false; open.querySelector("summary").focus(); }
  });
  document.addEventListener("click", (event) => {
    const open = document.querySelector("details.pick[open]");
    if (open && !open.contains(event.target)) open.open = false;
  });

  dark.addEventListener("change", () => { paint(); drawAll(); });
  let waiting;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      figures.filter((figure) => {
        const place = figure.querySelector(".plot");
        return Math.abs(Number(place.dataset.width) - place.clientWidth) > 8;
      }).reduce((before, figure) => before.then(() => draw(figure)), Promise.resolve());
    }, 150);
  });
  paint();
  drawAll().then(() => { document.body.dataset.ready = "yes"; });
})();
