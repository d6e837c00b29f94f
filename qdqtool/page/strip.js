// The overview: every node as a cell, in the order they run, a row for each scope, in the colours of a metric. The page knows the
// model that is shown and where a node leads (link).
const stripOf = ({ $, svg, el, put, METRICS, colours }, page) => {
  function strip() {
    const model = page.model(),
      metric = METRICS[$("#metric").value];
    if (!metric) return;
    const box = $("#strip"),
      wide = Math.max(box.clientWidth, 260),
      pitch = model.nodes.length < 80 ? 26 : model.nodes.length < 300 ? 20 : 15,
      isNarrow = wide < 560,
      side = isNarrow ? 0 : 190;
    const across = Math.max(4, Math.floor((wide - side) / pitch)),
      { css, legend } = colours(metric, model.nodes);
    const cells = [],
      texts = [];
    let top = 0,
      at = 0;
    for (const [scope, first, end] of model.rows) {
      if (isNarrow && scope) top += 14;
      const letters = Math.floor((isNarrow ? wide : side - 10) / 6.5),
        short = scope.length > letters ? `…${scope.slice(1 - letters)}` : scope;
      texts.push(svg("text", { x: 0, y: top + (isNarrow ? -3 : pitch / 2 + 3) }, short, svg("title", {}, scope)));
      for (let each = first; each < end; each++) {
        const node = model.nodes[each],
          place = each - first;
        const told = `${node.n}, ${node.op || "node"}: ${metric.title} ${metric.show(node) || "not known"}`;
        cells.push(
          svg(
            "rect",
            {
              id: `cell-${each}`,
              class: css(node),
              role: "option",
              rx: 2,
              "aria-label": told,
              "data-at": each,
              "data-name": node.n,
              x: side + (place % across) * pitch,
              y: top + Math.floor(place / across) * pitch,
              width: pitch - 2,
              height: pitch - 2,
            },
            svg("title", {}, told),
          ),
        );
      }
      top += Math.ceil((end - first) / across) * pitch + 2;
    }
    const focus = (to) => {
      cells[at]?.classList.remove("at");
      at = Math.max(0, Math.min(cells.length - 1, to));
      cells[at].classList.add("at");
      picture.setAttribute("aria-activedescendant", cells[at].id);
      put("#strip p", cells[at].getAttribute("aria-label"));
    };
    const open = (to) => {
      location.hash = page.link("node", model.nodes[to].n);
    };
    const picture = svg(
      "svg",
      {
        width: wide,
        height: top + 2,
        viewBox: `0 0 ${wide} ${top + 2}`,
        role: "listbox",
        tabindex: "0",
        "aria-label": `Nodes by ${metric.title}`,
        click: (event) => {
          const to = event.target.dataset?.at;
          if (to !== undefined) {
            focus(Number(to));
            open(Number(to));
          }
        },
        keydown: (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -Infinity, End: Infinity }[
            event.key
          ];
          if (step !== undefined && cells.length) {
            event.preventDefault();
            focus(at + step);
          }
          if (event.key === "Enter" && cells.length) open(at);
        },
      },
      ...texts,
      ...cells,
    );
    put(box, picture, el("p", { class: "note", "aria-hidden": "true" }));
    put("#legend", ...legend);
  }
  return strip;
};
