"use strict";
// Draws the report that stands in #data.  Names of hosts and tasks, and what programs say, come in as text alone:
// nothing here makes HTML of a string.
(() => {
  const report = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("report");
  const COLOURS = ["#3b82c4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#8c8cd9", "#56b4e9", "#b8a800"];
  const LINES_MOST = 8;   // of so many tasks each has a curve of its own
  const UNITS = { cores: "cores", sent: "B/s", received: "B/s", peers: "B/s", files: "B/s", quiet_s: "s", step: "", loss: "",
    gpu: "%", watts: "W", gpu_bytes: "B", sm: "%", tensor: "%", dram: "%", cpu_pressure: "%", memory_pressure: "%", io_pressure: "%" };
  const TITLES = { cores: "Processor, in cores", sent: "Sent", received: "Received", peers: "To and from tasks of the run",
    files: "Files read and written", quiet_s: "Since the last line of the log", step: "Step", loss: "Loss",
    gpu: "GPUs computing", watts: "Power of the GPUs", gpu_bytes: "Memory of the GPUs", sm: "SMs computing",
    tensor: "Tensor cores computing", dram: "Speed of the GPUs' memory", cpu_pressure: "Waiting for a processor",
    memory_pressure: "Waiting for memory", io_pressure: "Waiting for a disk" };
  const ORDER = ["cores", "gpu", "peers", "step", "loss", "sent", "received", "files", "sm", "tensor", "dram", "watts", "gpu_bytes", "quiet_s",
    "cpu_pressure", "memory_pressure", "io_pressure"];
  const SVG = "http://www.w3.org/2000/svg";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = [];

  function add(parent, tag, text, kind) {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (kind) made.className = kind;
    parent.append(made);
    return made;
  }
  function draw(parent, tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }
  function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  function short(value, digits) { return String(Number(value.toPrecision(digits))); }
  function bytes(value, rest) {
    for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
      if (Math.abs(value) < 1000 || unit === "TiB") return `${short(value, 3)} ${unit}${rest}`;
      value /= 1024;
    }
  }
  function shown(column, value) {
    if (value === null || value === undefined) return "";
    const unit = UNITS[column];
    if (unit === "B/s") return bytes(value, "/s");
    if (unit === "B") return bytes(value, "");
    if (unit === "%") return `${Math.round(value * 10) / 10} %`;
    return short(value, column === "step" ? 9 : 3) + (unit && unit !== "cores" ? ` ${unit}` : "");
  }
  function lasted(seconds) {
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    if (!minutes) return `${whole} s`;
    return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  function clock(seconds) {   // 0:10, 12:00, 26:03:00
    const two = value => String(value).padStart(2, "0");
    const whole = Math.round(seconds), hours = Math.floor(whole / 3600), rest = `${two(whole % 60)}`;
    return hours ? `${hours}:${two(Math.floor(whole / 60) % 60)}:${rest}` : `${Math.floor(whole / 60)}:${rest}`;
  }
  const colours = new Map();   // a task has its colour in every picture
  function colourOf(name) {
    if (!colours.has(name)) colours.set(name, COLOURS[colours.size % COLOURS.length]);
    return colours.get(name);
  }
  // Where an axis may have its ticks: at round numbers of bytes, and of seconds, minutes and hours.
  const BYTES = Array.from({ length: 50 }, (_, power) => 2 ** power);
  const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

  function table(parent, heads, rows) {
    const made = add(add(parent, "div", null, "wide"), "table");
    const top = add(add(made, "thead"), "tr");
    for (const [text, kind] of heads) add(top, "th", text, kind);
    const body = add(made, "tbody");
    for (const row of rows) {
      const line = add(body, "tr");
      row.forEach((cell, number) => {
        const kind = heads[number][1] || "";
        if (cell instanceof Node) add(line, "td", null, kind).append(cell);
        else add(line, "td", cell, kind);
      });
    }
    return made;
  }
  function numbers(parent, heads, rows) {   // the numbers of a picture: made when somebody opens them
    const details = add(parent, "details");
    add(details, "summary", "The numbers");
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1) table(details, heads(), rows());
    });
  }

  // bins -> for each task, or host, and column, its values by the number of the bin
  function seriesOf(samples, names, columns, bins, jobOf) {
    if (!bins.length) return null;
    const length = bins[bins.length - 1][0] + 1;
    const series = names.map(() => columns.map(() => null));
    for (const bin of bins) {
      for (const row of bin.slice(1)) {
        for (let at = 1; at < row.length; at++) {
          if (row[at] === null) continue;
          const of = series[row[0]];
          (of[at - 1] ||= [])[bin[0]] = row[at];   // a trial of a sweep has values in a few of the bins
        }
      }
    }
    const middle = Array.from({ length }, (_, number) => (number + 0.5) * samples.every_s);
    return { tasks: names, columns, series, middle, every: samples.every_s, began: samples.began, length, bins, jobOf };
  }
  const ofTasks = ({ samples }) => samples && seriesOf(samples, samples.tasks, Object.keys(samples.columns), samples.bins, task => task.split("/")[0]);
  const ofHosts = ({ samples }) => samples && seriesOf(samples, samples.hosts, Object.keys(samples.host_columns), samples.host_bins, () => "hosts");
  function valuesOf(seen, column) {   // [task, values] of those that have any
    const at = seen.columns.indexOf(column);
    return seen.tasks.map((task, number) => [task, seen.series[number][at]]).filter(each => each[1]);
  }
  function columnsOf(seen) {
    return ORDER.filter(column => seen.columns.includes(column) && valuesOf(seen, column).some(([, row]) => row.some(Boolean)));
  }
  function quantile(sorted, share) { return sorted ? sorted[Math.round(share * (sorted.length - 1))] : null; }
  function linesOf(seen, column, most) {   // [name, values]: of each task, or of each job the middle, the least, the most
    const rows = valuesOf(seen, column);
    if (rows.length <= most) return rows.map(([task, row]) => [task, seen.middle.map((_, number) => row[number] ?? null)]);
    const jobs = new Map(), jobOf = seen.tasks.map(seen.jobOf), at = seen.columns.indexOf(column) + 1;
    for (const [task] of rows) {
      const job = seen.jobOf(task);
      if (!jobs.has(job)) jobs.set(job, { count: 0, bins: [] });
      jobs.get(job).count++;
    }
    for (const [number, ...own] of seen.bins) {
      for (const row of own) {
        if (row[at] !== null && row[at] !== undefined) (jobs.get(jobOf[row[0]]).bins[number] ||= []).push(row[at]);
      }
    }
    const lines = [];
    for (const [job, { count, bins }] of jobs) {
      bins.forEach(values => values.sort((one, two) => one - two));
      const of = share => seen.middle.map((_, number) => quantile(bins[number], share));
      if (count === 1) lines.push([job, of(0.5)]);
      else if (most) lines.push([`${job}: median of ${count}`, of(0.5)], [`${job}: least`, of(0)], [`${job}: most`, of(1)]);
      else lines.push([`${job}: median of ${count}`, of(0.5)]);
    }
    return lines;
  }

  // Where a line has a value, and none beside it: no stroke would show that.
  const alone = values => [...values.keys()].filter(at => values[at] != null && values[at - 1] == null && values[at + 1] == null);

  function chart(parent, column, x, lines, marks) {
    const place = add(parent, "div", null, "chart");
    add(place, "h3", TITLES[column]);
    const holder = add(place, "div");
    const axis = size => ({ stroke: () => css("--dim"), grid: { stroke: () => css("--line"), width: 1 },
      ticks: { stroke: () => css("--line"), width: 1 }, font: "11px system-ui, sans-serif", size });
    const made = new uPlot({
      width: Math.max(280, holder.clientWidth), height: 220, cursor: { y: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.05 : 1] } },
      axes: [{ ...axis(36), incrs: TIMES, values: (_, ticks) => ticks.map(clock) },
        { ...axis(76), ...(UNITS[column].startsWith("B") ? { incrs: BYTES } : {}), values: (_, ticks) => ticks.map(tick => shown(column, tick)) }],
      series: [{ label: "after", value: (_, value) => value === null ? "" : lasted(value) },
        ...lines.map(([label, , dashed, key]) => ({ label, stroke: colourOf(key || label), width: 1.5,
          dash: dashed ? [6, 4] : undefined, spanGaps: false, points: { show: true, filter: (u, at) => alone(u.data[at]) },
          value: (_, value) => shown(column, value) }))],
      hooks: { draw: [u => {
        u.ctx.save();
        u.ctx.strokeStyle = css("--warn");
        u.ctx.setLineDash([3, 3]);
        for (const at of marks) {
          const left = u.valToPos(at, "x", true);
          if (left < u.bbox.left || left > u.bbox.left + u.bbox.width) continue;
          u.ctx.beginPath();
          u.ctx.moveTo(left, u.bbox.top);
          u.ctx.lineTo(left, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
        }
        u.ctx.restore();
      }] },
    }, [x, ...lines.map(line => line[1])], holder);
    charts.push([made, holder]);
    numbers(place, () => [["after", "number"], ...lines.map(([name]) => [name, "number"])],
      () => x.map((at, number) => [lasted(at), ...lines.map(line => shown(column, line[1][number]))]));
  }

  function heat(parent, seen, columns, what) {
    const controls = add(parent, "p", null, "controls"), choice = add(controls, "select");
    choice.setAttribute("aria-label", "what the map shows");
    for (const column of columns) add(choice, "option", TITLES[column]).value = column;
    const place = add(parent, "div");
    function show() {
      place.replaceChildren();
      const column = choice.value, rows = valuesOf(seen, column);
      let most = 0;
      for (const [, row] of rows) row.forEach(value => { if (value > most) most = value; });
      if (UNITS[column] === "%") most = 100;
      const high = Math.max(1, Math.min(20, 900 / rows.length)), label = rows.length <= 60 ? 110 : 0, width = 1000;
      const wide = (width - label) / seen.length;
      const svg = draw(place, "svg", { viewBox: `0 0 ${width} ${high * rows.length + 18}`, role: "img",
        "aria-label": `${TITLES[column]}: ${what}s and time` });
      const paths = Array.from({ length: 9 }, () => []);
      rows.forEach(([task, row], line) => {
        row.forEach((value, number) => {
          const step = most ? Math.min(8, Math.floor(9 * value / most)) : 0;
          paths[step].push(`M${(label + number * wide).toFixed(1)} ${(line * high).toFixed(1)}h${(wide + 0.2).toFixed(1)}v${high.toFixed(1)}h-${(wide + 0.2).toFixed(1)}z`);
        });
        if (label) draw(svg, "text", { x: 0, y: line * high + high / 2 + 4 }, task.length > 16 ? `${task.slice(0, 15)}…` : task);
      });
      paths.forEach((path, step) => path.length && draw(svg, "path", { class: `h${step}`, d: path.join("") }));
      const last = seen.length * seen.every, y = high * rows.length + 14;
      for (const share of [0, 0.25, 0.5, 0.75, 1]) {
        draw(svg, "text", { x: label + share * (width - label), y, "text-anchor": share === 1 ? "end" : share ? "middle" : "start" }, clock(share * last));
      }
      const readout = add(place, "p", `The pointer on the map: ${what}, time and value stand here.`, "dim controls");
      svg.addEventListener("pointermove", event => {
        const box = svg.getBoundingClientRect(), scale = width / box.width;
        const number = Math.floor(((event.clientX - box.left) * scale - label) / wide);
        const line = Math.floor((event.clientY - box.top) * scale / high);
        if (rows[line] && number >= 0 && number < seen.length) {
          readout.textContent = `${rows[line][0]}, after ${lasted(seen.middle[number])}: ${shown(column, rows[line][1][number]) || "not known"}`;
        }
      });
      const legend = add(place, "p", null, "legend dim");
      add(legend, "span", shown(column, 0));
      const scale = draw(legend, "svg", { viewBox: "0 0 90 8", "aria-hidden": "true" });
      for (let step = 0; step < 9; step++) draw(scale, "rect", { class: `h${step}`, x: step * 10, y: 0, width: 10, height: 8 });
      add(legend, "span", shown(column, most));
      numbers(place, () => [[what], ...seen.middle.map(at => [lasted(at), "number"])],
        () => rows.map(([task, row]) => [task, ...seen.middle.map((_, number) => shown(column, row[number]))]));
    }
    choice.addEventListener("change", show);
    show();
  }

  const GOOD = { succeeded: "good", running: "", detached: "dim", unknown: "dim", interrupted: "dim" };
  const words = word => report.words[word] ?? word;
  function head(parent, run) {
    const title = add(parent, "h1", `${run.run_id} `);
    add(title, "span", words(run.status), GOOD[run.status] ?? "bad");
    const began = new Date(run.began * 1000);
    const said = [`began ${began.toLocaleString()}`, run.seconds !== null && `took ${lasted(run.seconds)}`,
      run.exit_code && `exit code ${run.exit_code}`, `${run.tasks.length} tasks on ${new Set(run.tasks.map(task => task.host)).size} hosts`];
    add(parent, "p", said.filter(Boolean).join(" · "), "dim");
    for (const verdict of run.verdicts) {
      const box = add(parent, "div", null, `verdict ${verdict.kind === "failure" ? "failure" : ""}`);
      add(box, "strong", verdict.text);
      if (verdict.advice) add(box, "span", verdict.advice);
    }
    if (!run.verdicts.length) add(parent, "div", "Nothing stands out.", "verdict none");
    for (const text of run.missing) add(parent, "p", text, "dim");
  }
  function timeline(parent, run) {
    add(parent, "h2", "What happened");
    const last = Math.max(run.seconds || 0, ...run.timeline.map(each => each.at + (each.lasted_s || 0) - run.began)) || 1;
    table(parent, [["after", "number"], ["what"], ["took", "number"], ["", "bars"], ["", "text"]], run.timeline.map(each => {
      const svg = document.createElementNS(SVG, "svg");
      for (const [name, value] of [["viewBox", "0 0 200 10"], ["width", 200], ["height", 10], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
      const left = 198 * (each.at - run.began) / last;
      draw(svg, "rect", { class: "bar", x: left, y: 1, height: 8, width: Math.max(2, 198 * (each.lasted_s || 0) / last) });
      return [lasted(each.at - run.began), words(each.kind), each.lasted_s === null ? "" : lasted(each.lasted_s), svg, each.text];
    }));
  }
  function tasks(parent, run) {
    add(parent, "h2", "The tasks");
    const columns = ORDER.filter(column => run.tasks.some(task => task.means[column] !== undefined));
    const rates = run.tasks.some(task => task.steps_s !== null), losses = run.tasks.some(task => task.loss !== null);
    const gpus = run.tasks.some(task => task.gpus.length), trials = run.tasks.some(task => task.trial);
    const values = trial => Object.entries(trial.params).map(([name, value]) => `${name}=${value}`).join(" ");
    table(parent, [["task"], ...(trials ? [["metric", "number"], ["values", "values"]] : []), ["host"], ...(gpus ? [["GPUs"]] : []), ...columns.map(column => [column, "number"]),
      ...(rates ? [["steps/s", "number"]] : []), ...(losses ? [["loss", "number"]] : []), ["end", "text"]],
    run.tasks.map(task => {
      const end = task.end, why = task.trial ? task.trial.why : "";
      const how = !end ? "" : why ? `${why}, after ${lasted(end.seconds)}` : `${end.signal || `exit code ${end.code}`} after ${lasted(end.seconds)}${end.stopped ? ", stopped" : ""}`;
      const again = task.restarts ? `${how && ", "}restarted ${task.restarts} times` : "";
      const trial = trials ? [task.trial.metric === null ? "" : short(task.trial.metric, 6), values(task.trial)] : [];
      return [task.task, ...trial, task.host, ...(gpus ? [task.gpus.join(", ")] : []), ...columns.map(column => shown(column, task.means[column])),
        ...(rates ? [task.steps_s === null ? "" : short(task.steps_s, 3)] : []),
        ...(losses ? [task.loss === null ? "" : short(task.loss, 4)] : []), how + again];
    }));
    if (columns.length) {
      const says = run.samples ? run.samples.columns : {};
      add(parent, "p", columns.map(column => `${column}: ${says[column]}`).join("; ") + ". Means while the task ran.", "dim");
    }
  }
  function hosts(parent, run) {
    if (!run.hosts.length) return;
    add(parent, "h2", "The hosts");
    const columns = ORDER.filter(column => run.hosts.some(host => host.means[column] !== undefined));
    table(parent, [["host"], ...columns.flatMap(column => [[TITLES[column], "number"], ["most", "number"]])],
      run.hosts.map(host => [host.host, ...columns.flatMap(column => [shown(column, host.means[column]), shown(column, host.most[column])])]));
    add(parent, "p", "Percent of the time in which programs waited, by the kernel's count (PSI): the mean while tasks ran, and the most in a bin.", "dim");
  }
  function ran(parent, run) {
    add(parent, "h2", "What it ran");
    const line = words => words.map(word => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`).join(" ");
    const rows = [["command", line(run.command)], ["in", run.directory],
      ...Object.entries(run.programs).map(([job, argv]) => [job, line(argv)]),
      ["code", run.code || "on the hosts"], ["tflaunch", run.versions.tflaunch],
      ...(run.samples ? [["samples", `${run.samples.bins.length} bins of ${lasted(run.samples.every_s)}`]] : [])];
    table(parent, [[""], ["", "text"]], rows.map(([name, text]) => {
      const pre = document.createElement("pre");
      pre.textContent = text;
      return [name, pre];
    }));
  }

  const runs = report.runs, seen = runs.map(ofTasks), seenHosts = runs.map(ofHosts);
  const after = (run, index) => run.timeline.filter(each => ["warn", "lost", "restarted", "unreachable"].includes(each.kind))
    .map(each => each.at - seen[index].began);
  runs.forEach(run => head(main, run));
  if (report.compared.length) {
    add(main, "h2", "Side by side");
    const number = value => value === null ? "" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : short(value, 4);
    table(main, [["", "text"], [runs[0].run_id, "number"], [runs[1].run_id, "number"], ["ratio", "number"]],
      report.compared.map(row => [row.what, ...row.values.map(number), row.ratio === null ? "" : `${row.ratio.toFixed(2)}×`]));
  }
  function both(grid, pair) {   // the curves of two runs over each other
    const x = [...new Set([...pair[0].middle, ...pair[1].middle])].sort((one, two) => one - two);
    for (const column of ORDER.filter(name => columnsOf(pair[0]).includes(name) || columnsOf(pair[1]).includes(name))) {
      const lines = pair.flatMap((own, index) => linesOf(own, column, 0).map(([name, values]) => {
        const at = new Map(own.middle.map((time, number) => [time, values[number]]));
        const last = own.middle[own.middle.length - 1];
        let before = null;   // a run with longer bins has no value of its own at each time
        return [`${runs[index].run_id} ${name}`, x.map(time => time > last ? null : (before = at.has(time) ? at.get(time) : before)), index === 1, name.split(":")[0]];
      }));
      chart(grid, column, x, lines, []);
    }
  }
  if (runs.length === 2 && seen[0] && seen[1]) {
    add(main, "h2", "Both over each other");
    add(main, "p", `${runs[1].run_id} is dashed; a job of several tasks is shown by their median, as the hosts are.`, "dim");
    const grid = add(main, "div", null, "charts");
    both(grid, seen);
    if (seenHosts[0] && seenHosts[1]) both(grid, seenHosts);
  }
  runs.forEach((run, index) => {
    const part = add(main, "section");
    if (runs.length === 2) add(part, "h1", run.run_id);
    timeline(part, run);
    if (seen[index]) {
      const columns = columnsOf(seen[index]);
      add(part, "h2", "Curves");
      add(part, "p", `Over the time since the tasks began; a point is the mean of ${lasted(seen[index].every)}. Dotted lines: warnings, losses, restarts.`, "dim");
      const grid = add(part, "div", null, "charts"), marks = after(run, index);
      for (const column of columns) chart(grid, column, seen[index].middle, linesOf(seen[index], column, LINES_MOST), marks);
      add(part, "h2", "Tasks and time");
      heat(part, seen[index], columns, "task");
    }
    tasks(part, run);
    hosts(part, run);
    if (seenHosts[index]) {
      const own = seenHosts[index], columns = columnsOf(own), grid = add(part, "div", null, "charts");
      for (const column of columns) chart(grid, column, own.middle, linesOf(own, column, LINES_MOST), seen[index] ? after(run, index) : []);
      if (own.tasks.length > LINES_MOST && columns.length) heat(part, own, columns, "host");
    }
    ran(part, run);
  });

  const again = () => charts.forEach(([made]) => made.redraw(false, true));
  dark.addEventListener("change", again);
  addEventListener("beforeprint", again);
  addEventListener("afterprint", again);
  addEventListener("resize", () => charts.forEach(([made, holder]) => made.setSize({ width: Math.max(280, holder.clientWidth), height: 220 })));
  document.documentElement.dataset.drawn = "yes";
})();
