/** The browser's databases (IndexedDB): opening one, and waiting for what is asked of it. */

/**
 * @param {string} name
 * @param {Record<string, IDBObjectStoreParameters>} stores by name
 * @returns {Promise<IDBDatabase>}
 */
export function openDatabase(name, stores) {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => {
    for (const [store, options] of Object.entries(stores)) request.result.createObjectStore(store, options);
  };
  return done(request);
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
export const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
