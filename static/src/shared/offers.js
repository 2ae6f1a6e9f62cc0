/** What can be asked for: each model of each worker. */

/** @typedef {import("./protocol.js").Worker} Worker */
/** @typedef {Worker & {loaded: boolean}} Offer a worker as it is with one of its models */

/**
 * @param {Worker[]} workers
 * @returns {Offer[]} those first that need not be loaded
 */
export function offersOf(workers) {
  const offers = workers.flatMap((worker) =>
    modelsOf(worker).map(({ name, chat, infill, context, state }) => ({
      ...worker, model: name, chat, infill, context, loaded: state === "loaded",
    })),
  );
  return [...offers.filter(({ loaded }) => loaded), ...offers.filter(({ loaded }) => !loaded)];
}

/**
 * @param {Worker} worker
 * @returns {import("./protocol.js").ServedModel[]}
 */
export function modelsOf({ model, chat, infill, context, models }) {
  return models?.length ? models : [{ name: model, state: "loaded", chat, infill, context, detail: "" }];
}
