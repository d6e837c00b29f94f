"use strict";
// Draws the page from the JSON in #data.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const models = data.models,
    many = models.length > 1;
  // Which model, and what is looked at, stands in the address, so that a link to it can be kept.
  let current = 0;
  const link = (kind, name, at = current) => `#${new URLSearchParams({ model: at, [kind]: name })}`;
  const anchor = (kind, name, at) => el("a", { href: link(kind, name, at) }, name);
  const parts = partsOf({ levels: data.levels, anchor });
  const {
    $,
    el,
    put,
    digits,
    percent,
    dearest,
    bytes,
    isChanged,
    prepared,
    histogram,
    stack,
    METRICS,
    edits,
    tensorCard,
    nodeCard,
  } = parts;
  models.forEach(prepared);

  // ---- tables
  const { table, matcher } = tablesOf(parts);
  const filters = [];
  function refilter() {
    const matches = matcher($("#filter").value),
      counts = filters.map(({ test, what }) => `${test(matches)} ${what}`);
    put("#found", counts.join(", "));
  }

  const strip = stripOf(parts, { model: () => models[current], link });

  function go() {
    const asked = new URLSearchParams(location.hash.slice(1)),
      at = Number(asked.get("model") ?? current);
    if (!location.hash.includes("=")) return;
    if (models[at] && at !== current) {
      current = at;
      draw();
    }
    const model = models[current],
      row = model.byTensor.get(asked.get("tensor")),
      node = model.byNode.get(asked.get("node"));
    const close = el(
      "button",
      {
        type: "button",
        click: () => {
          location.hash = "closed";
          put("#detail");
          mark();
        },
      },
      "Close",
    );
    if (row || node) {
      put("#detail", close, row ? tensorCard(row, model) : nodeCard(node, model));
      $("#detail").scrollTop = 0;
    } else if (asked.get("tensor") ?? asked.get("node"))
      put("#detail", close, el("p", {}, `${model.label} has no ${asked.get("tensor") ?? asked.get("node")}.`));
    mark(row?.o ?? node?.n);
  }
  const mark = (name) =>
    document.querySelectorAll("#strip rect").forEach((cell) => cell.classList.toggle("open", cell.dataset.name === name));

  // ---- the sections
  const hide = (query, isHidden) =>
    document.querySelectorAll(query).forEach((part) => {
      part.hidden = isHidden;
    });
  const number = (title, get, show, help) => ({ title, get, show, help, number: true });
  function draw() {
    const model = models[current],
      has = (rows, key) => rows.some((row) => row[key] !== undefined);
    document.querySelectorAll("#models input").forEach((input, at) => {
      input.checked = at === current;
    });
    const keep = $("#metric").value,
      offered = Object.entries(METRICS).filter(([, metric]) => model.nodes.some((node) => metric.get(node) !== undefined));
    put("#metric", ...offered.map(([name, metric]) => el("option", { value: name, selected: name === keep }, metric.title)));
    strip();
    put(
      "#next ol",
      ...(model.advice.length
        ? model.advice.map((one) =>
            el("li", {}, anchor(one.kind, one.n), ` ${percent(one.s)} of the noise. ${one.c}: ${one.why}`, ...edits(one)),
          )
        : [el("li", {}, "Nothing costs anything.")]),
    );
    put(
      "#causes div",
      ...models.map((each) =>
        el(
          "div",
          {},
          many ? el("h3", {}, each.label) : "",
          stack(Object.entries(each.causes), `Noise of ${each.label} by cause`),
        ),
      ),
    );
    put(
      "#dearest .cards",
      ...[...model.tensors]
        .filter((row) => row.h && row.s)
        .sort((a, b) => b.s - a.s)
        .slice(0, 6)
        .map((row) =>
          el(
            "article",
            {},
            el("h3", {}, anchor("tensor", row.n)),
            histogram(row),
            el("p", {}, `${percent(row.s)} of the noise, ${dearest(row)}`),
          ),
        ),
    );
    const tensors = table({
      title: "Quantized tensors",
      rows: model.tensors,
      columns: [
        number(
          "price",
          (t) => t.s ?? 0,
          (t) => percent(t.s),
          "share of the noise at the outputs",
        ),
        { title: "tensor", get: (t) => t.n, show: (t) => anchor("tensor", t.n) },
        { title: "kind", get: (t) => t.k },
        { title: "cause", get: (t) => model.told("tensor", t.n)?.c ?? dearest(t) },
        { title: "grid", get: (t) => t.g },
        number(
          "clipped",
          (t) => t.cl,
          (t) => percent(t.cl),
        ),
        number(
          "SQNR, dB",
          (t) => t.db,
          (t) => digits(t.db),
          "of the tensor alone",
        ),
        number(
          "moved",
          (t) => (t.m ?? []).length - 1,
          (t) => (t.m ? String(t.m.length - 1) : ""),
          "times its grid was changed",
        ),
        { title: "node", get: (t) => t.o },
      ],
    });
    const optional = [
      ["vd", { title: "verdict", get: (n) => n.vd }],
      ["d", { title: "device", get: (n) => n.d }],
      [
        "us",
        number(
          "µs",
          (n) => n.us?.[0],
          (n) => (n.us ? `${digits(n.us[0], 3)} (${digits(n.us[1], 3)}–${digits(n.us[2], 3)})` : ""),
          "80 % interval",
        ),
      ],
      [
        "b",
        number(
          "bytes",
          (n) => n.b,
          (n) => bytes(n.b),
        ),
      ],
      ["rs", { title: "why", get: (n) => n.rs, long: true }],
    ]
      .filter(([key]) => has(model.nodes, key))
      .map(([, column]) => column);
    const nodes = table({
      title: "Nodes",
      rows: model.nodes,
      columns: [
        number(
          "price",
          (n) => n.price,
          (n) => percent(n.price),
          "with its tensors, share of the noise at the outputs",
        ),
        { title: "node", get: (n) => n.n, show: (n) => anchor("node", n.n) },
        { title: "operator", get: (n) => n.op },
        number(
          "here, dB",
          (n) => n.hd,
          (n) => digits(n.hd),
        ),
        number(
          "with what came in, dB",
          (n) => n.wd,
          (n) => digits(n.wd),
        ),
        ...optional,
      ],
    });
    filters.splice(0, filters.length, { ...tensors, what: "tensors" }, { ...nodes, what: "nodes" });
    put("#tensors", tensors.part);
    put("#nodes", nodes.part);
    if (many) beside();
    hide(".placed", !model.placement.length);
    hide(".moved", !model.passes.length);
    put(
      "#placement div",
      table({
        title: "Nodes by verdict and reason",
        rows: model.placement,
        columns: [
          number("nodes", (p) => p[4]),
          { title: "verdict", get: (p) => p[0] },
          { title: "device", get: (p) => p[1] },
          { title: "why", get: (p) => p[2], long: true },
          { title: "operators", get: (p) => p[3], long: true },
          number("µs", (p) => p[5] ?? undefined),
        ],
      }).part,
    );
    put(
      "#passes div",
      table({
        title: "Passes that chose or changed grids",
        rows: model.passes,
        sort: 2,
        columns: [
          { title: "pass", get: (p) => p[0] },
          number("chose", (p) => p[1]),
          number("changed", (p) => p[2]),
          number(
            "price of what it changed",
            (p) => p[3],
            (p) => percent(p[3]),
          ),
        ],
      }).part,
    );
    refilter();
  }
  function beside() {
    const rows = [...new Set(models.flatMap((model) => model.tensors.map((row) => row.n)))].map((name) => {
      const each = models.map((model) => model.byTensor.get(name)),
        first = each.find(Boolean),
        power = each.map((row, at) => (row ? (row.s ?? 0) * models[at].noise : undefined));
      const there = power.filter((value) => value !== undefined);
      return {
        name,
        each,
        power,
        facts: {
          ...first.facts,
          cause: each.flatMap((row) => row?.facts.cause ?? []),
          pass: each.flatMap((row) => row?.facts.pass ?? []),
        },
        apart: Math.max(...there) - Math.min(...there),
        isDearer: there.length > 1 && Math.max(...there) > 2 * Math.min(...there) + 1e-9,
        grids: each.map((row) => row?.g),
        verdicts: each.map((row) => row?.node?.vd),
      };
    });
    const noisiest = Math.max(...models.map((model) => model.noise), 1e-30);
    const noted = (isOther, text) => (text && isOther ? `≠ ${text}` : (text ?? ""));
    const columns = models.flatMap((model, at) => [
      {
        ...number(
          `${model.label}: price, dB`,
          (r) => r.power[at],
          (r) =>
            r.power[at] === undefined ? "–" : noted(r.isDearer, r.power[at] ? digits(10 * Math.log10(r.power[at]), 3) : "exact"),
          "noise at the outputs over the signal",
        ),
        differs: (r) => r.isDearer,
      },
      {
        title: "grid",
        get: (r) => r.grids[at],
        show: (r) => noted(isChanged(r.grids), r.grids[at]),
        differs: (r) => isChanged(r.grids),
      },
      ...(models.some((one) => one.placement.length)
        ? [
            {
              title: "verdict",
              get: (r) => r.verdicts[at],
              show: (r) => noted(isChanged(r.verdicts), r.verdicts[at]),
              differs: (r) => isChanged(r.verdicts),
            },
          ]
        : []),
    ]);
    const found = table({
      title: "Tensors of all models",
      rows,
      columns: [
        number(
          "difference",
          (r) => r.apart,
          (r) => percent(r.apart / noisiest),
          "of the noise of the worst model",
        ),
        { title: "tensor", get: (r) => r.name, show: (r) => anchor("tensor", r.name, Math.max(0, r.each.findIndex(Boolean))) },
        ...columns,
      ],
    });
    filters.push({ ...found, what: "side by side" });
    put("#beside div", found.part);
  }

  put("#title", `Report: ${models.map((model) => model.label).join(", ")}`);
  hide(".many", !many);
  $("#models").append(
    ...models.map((model, at) =>
      el(
        "label",
        {},
        el("input", {
          type: "radio",
          name: "model",
          change: () => {
            location.hash = new URLSearchParams({ model: at });
          },
        }),
        model.label,
      ),
    ),
  );
  put(
    "#summary div",
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, el("td"), ...models.map((model) => el("th", { scope: "col" }, model.label)))),
      el(
        "tbody",
        {},
        ...data.summary.map(([what, texts]) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, what),
            ...texts.map((text) => el("td", { class: isChanged(texts) && "differs" }, text)),
          ),
        ),
      ),
    ),
  );
  $("#metric").addEventListener("change", () => {
    strip();
    go();
  });
  $("#filter").addEventListener("input", refilter);
  $("#filter").addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      $("#filter").value = "";
      refilter();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) {
      event.preventDefault();
      $("#filter").focus();
    }
  });
  document.addEventListener("click", (event) => {
    // in a frame of a notebook a plain #link would lead to the notebook
    const to = location.protocol === "about:" && event.target.closest?.("a")?.getAttribute("href");
    if (to) {
      event.preventDefault();
      location.hash = to;
    }
  });
  addEventListener("hashchange", go);
  addEventListener("resize", () => {
    strip();
    go();
  });
  (draw(), go());
})();
