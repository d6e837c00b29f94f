// The metrics that nodes, and tensors where they have it, can have the colour of: title, get of a node, show in words, tensor, and
// level where it is a number (more is darker) or words where it is none. Whether a name differs between models the page knows.
const coloursOf = ({ digits, percent, METRICS }, differs) => {
  const worst = (rows, get, sign) =>
    rows
      .map(get)
      .filter((value) => value !== undefined)
      .reduce((a, b) => (a === undefined || sign * b > sign * a ? b : a), undefined);
  const width = (grid) => {
    const bits = /^u?(?:int|fixed)?(?:float)?(\d+)/.exec(grid ?? "")?.[1];
    return bits ? `${bits}-bit` : undefined;
  };
  const db = (value) => (value === undefined ? "" : `${digits(value)} dB`);
  const COLOURS = {
    type: {
      title: "type",
      get: (n) => {
        const bits = worst(
          n.own.filter((t) => t.k !== "bias"),
          (t) => Number.parseInt(width(t.g), 10) || undefined,
          -1,
        );
        return bits ? `${bits}-bit` : "float";
      },
      show: (n) => COLOURS.type.get(n),
      tensor: (t) => width(t.g),
      words: ["2-bit", "4-bit", "8-bit", "16-bit", "32-bit", "float"],
    },
    price: { ...METRICS.price, tensor: (t) => t.s },
    sqnr: {
      title: "SQNR of tensors alone",
      get: (n) => worst(n.own, (t) => t.db, -1),
      show: (n) => db(COLOURS.sqnr.get(n)),
      level: (v) => -v,
      what: "noise",
      tensor: (t) => t.db,
    },
    clipped: {
      title: "clipped share",
      get: (n) => worst(n.own, (t) => t.cl, 1),
      show: (n) => percent(COLOURS.clipped.get(n)),
      level: Math.sqrt,
      tensor: (t) => t.cl,
    },
    here: METRICS.here,
    whole: METRICS.whole,
    verdict: METRICS.verdict,
    time: METRICS.us,
    bytes: METRICS.bytes,
    changes: {
      title: "differences",
      get: (n) => (differs(n.n) || n.own.some((t) => differs(t.n)) ? "differs" : "same"),
      show: (n) => COLOURS.changes.get(n),
      tensor: (t) => (differs(t.n) ? "differs" : "same"),
      words: ["same", "differs"],
    },
  };
  return COLOURS;
};
