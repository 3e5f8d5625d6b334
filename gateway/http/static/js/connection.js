/**
 * One WebSocket to the gateway that comes back by itself: with a new ticket each time, after growing, jittered pauses.
 *
 * @typedef {"idle" | "connecting" | "open" | "draining" | "waiting" | "refused"} State
 *   idle: closed, and nobody needs it · waiting: closed, will be opened again · refused: the key is not accepted
 *
 * @typedef {import("./api.js").ApiFailure} ApiFailure
 *
 * @typedef {object} Parts
 * @property {string} url
 * @property {() => boolean} ready whether there is a key to ask for tickets with
 * @property {() => Promise<string>} ticket gives a single-use ticket, or throws an `ApiFailure`
 * @property {() => boolean} needed whether an answer is under way that a closed connection must come back for
 * @property {(state: State, detail: {failure?: ApiFailure, delay?: number, resumed?: boolean}) => void} onstate
 * @property {() => void} onopen
 * @property {(event: object) => void} onevent
 */

const SUBPROTOCOL = "roundhouse.json";
const TICKET_PREFIX = "roundhouse.ticket.";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;
const OPEN_TIMEOUT = 10_000;

/** Close codes of a connection that was simply not used, or used for long enough. */
const QUIET = new Set([1001, 4408]);

/** Milliseconds to wait before an attempt (counted from 0): exponential, with full jitter. @param {number} attempt */
export function pause(attempt, random = Math.random) {
  const longest = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** attempt);
  return Math.round(100 + random() * (longest - 100));
}

export class Connection {
  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    /** @type {State} */
    this.state = "idle";
    /** @type {WebSocket | null} */
    this.socket = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** Attempts since the last event; how long to pause. */
    this.attempt = 0;
    /** Changes with each attempt: what an older one still reports is not heard. */
    this.generation = 0;
    /** @type {number | null} */
    this.restartDelay = null;
    this.wasOpen = false;
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Open the connection if it is closed; do nothing if it is open or about to be, or if there is no key yet. */
  connect() {
    if (!this.parts.ready()) return;
    if (this.state === "idle" || this.state === "waiting" || this.state === "refused") this.#open();
  }

  /**
   * Send an event.
   *
   * @param {object} event
   * @returns {boolean} false if the connection is not open; then nothing was sent
   */
  send(event) {
    if (!this.socket || !this.isOpen) return false;
    this.socket.send(JSON.stringify(event));
    return true;
  }

  /** The network is gone: do not wait for the socket to find out. */
  interrupt() {
    if (this.state === "connecting" || this.state === "open" || this.state === "draining") {
      this.#lost(this.socket, { code: 1006 });
    }
  }

  async #open() {
    clearTimeout(this.timer);
    this.#move("connecting");
    const generation = ++this.generation;
    let ticket;
    try {
      ticket = await this.parts.ticket();
    } catch (failure) {
      if (this.generation === generation) this.#refused(failure);
      return;
    }
    if (this.generation !== generation) return;
    const socket = (this.socket = new WebSocket(this.parts.url, [SUBPROTOCOL, TICKET_PREFIX + ticket]));
    this.timer = setTimeout(() => this.#lost(socket, { code: 1006 }), OPEN_TIMEOUT);
    socket.onopen = () => this.socket === socket && this.#opened();
    socket.onmessage = (message) => this.socket === socket && this.#received(JSON.parse(message.data));
    socket.onclose = (close) => this.#lost(socket, close);
  }

  #opened() {
    clearTimeout(this.timer);
    const resumed = this.wasOpen && this.parts.needed();
    this.wasOpen = true;
    this.restartDelay = null;
    this.#move("open", { resumed });
    this.parts.onopen();
  }

  /** @param {Record<string, any>} event */
  #received(event) {
    this.attempt = 0;
    if (event.type === "roundhouse.draining") {
      this.restartDelay = event.reconnect_after_ms;
      this.#move("draining");
      return;
    }
    this.parts.onevent(event);
  }

  /** @param {WebSocket | null} socket @param {{code: number}} close */
  #lost(socket, { code }) {
    if (this.socket !== socket) return;
    this.#drop();
    if (QUIET.has(code) && !this.parts.needed()) {
      this.#move("idle");
    } else {
      this.#wait();
    }
  }

  /** @param {any} failure */
  #refused(failure) {
    if (failure.status === 401 || failure.status === 403) {
      this.#move("refused", { failure });
    } else {
      this.#wait();
    }
  }

  #wait() {
    const delay = this.restartDelay ?? pause(this.attempt);
    this.restartDelay = null;
    this.attempt += 1;
    this.#move("waiting", { delay });
    this.timer = setTimeout(() => this.#open(), delay);
  }

  #drop() {
    clearTimeout(this.timer);
    const socket = this.socket;
    this.socket = null;
    this.generation += 1;
    socket?.close();
  }

  /** @param {State} state @param {Parameters<Parts["onstate"]>[1]} [detail] */
  #move(state, detail = {}) {
    this.state = state;
    this.parts.onstate(state, detail);
  }
}
