/**
 * The editor plugin's line to the daemon: one JSON object per line over the control port.
 *
 * The bridge reconnects by itself and never blocks the editor. A request that was sent before the line
 * broke is rejected, not repeated: only the caller knows whether asking twice is harmless.
 */
import { readFile } from "node:fs/promises";
import { createConnection, type Socket } from "node:net";

export const CONTROL_PORT = 47130;
/** The daemon answers everything but `rekey` within a second; ten leave room for a laptop waking up. */
export const REQUEST_TIMEOUT_MS = 10_000;
/** Waits between attempts to connect. The daemon is on this machine, so 8 s is long enough. */
export const BACKOFF_MS = [250, 500, 1_000, 2_000, 4_000, 8_000] as const;
/** A longer line is a bug or an attack; the connection is closed. */
export const MAX_LINE_CHARS = 1_048_576;

export type SyncState = "synced" | "pending" | "paused" | "offline" | "readonly";

export interface Status {
  state: SyncState;
  pending: { up: number; down: number };
  /** Paths of conflict copies nobody has looked at yet. */
  conflicts: string[];
}

export class BridgeError extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.name = "BridgeError";
    this.code = code;
  }
}

interface Waiting {
  resolve: (value: unknown) => void;
  reject: (error: BridgeError) => void;
  timer: NodeJS.Timeout;
}

export class Bridge {
  private socket: Socket | null = null;
  private buffer = "";
  private nextId = 1;
  private attempt = 0;
  private closed = false;
  private readonly waiting = new Map<number, Waiting>();
  private readonly tokenFile: string;
  private readonly onStatus: (status: Status) => void;

  constructor(tokenFile: string, onStatus: (status: Status) => void) {
    this.tokenFile = tokenFile;
    this.onStatus = onStatus;
  }

  /** Opens the line and keeps it open until `close`. */
  async open(): Promise<void> {
    // The token is read at every attempt: the daemon writes a new one at every start.
    let token: string;
    try {
      token = (await readFile(this.tokenFile, "utf8")).trim();
    } catch {
      this.retry();
      return;
    }
    if (this.closed) return;
    const socket = createConnection({ host: "127.0.0.1", port: CONTROL_PORT });
    socket.setEncoding("utf8");
    socket.on("connect", () => {
      this.attempt = 0;
      socket.write(JSON.stringify({ hello: "plugin", token }) + "\n");
    });
    socket.on("data", (text: string) => this.receive(text));
    socket.on("error", () => {}); // "close" follows and does the work
    socket.on("close", () => this.lost());
    this.socket = socket;
  }

  /** Sends one command, such as `conflicts.open` or `history`, and waits for its answer. */
  request<T>(command: string, args: Record<string, unknown> = {}): Promise<T> {
    const socket = this.socket;
    if (socket === null || socket.connecting) {
      return Promise.reject(new BridgeError("offline", "The daemon is not running."));
    }
    const id = this.nextId++;
    return new Promise<T>((resolve, reject) => {
      const timer = setTimeout(() => {
        this.waiting.delete(id);
        reject(new BridgeError("timeout", `No answer to ${command} within ${REQUEST_TIMEOUT_MS} ms.`));
      }, REQUEST_TIMEOUT_MS);
      this.waiting.set(id, { resolve: resolve as (value: unknown) => void, reject, timer });
      socket.write(JSON.stringify({ id, command, args }) + "\n");
    });
  }

  close(): void {
    this.closed = true;
    this.socket?.end();
  }

  private receive(text: string): void {
    this.buffer += text;
    const lines = this.buffer.split("\n");
    this.buffer = lines.pop() ?? "";
    if (this.buffer.length > MAX_LINE_CHARS) {
      this.socket?.destroy();
      return;
    }
    for (const line of lines) {
      if (line !== "") this.dispatch(line);
    }
  }

  private dispatch(line: string): void {
    const message = JSON.parse(line);
    if (message.event === "status") {
      this.onStatus(message.status as Status);
      return;
    }
    const waiting = this.waiting.get(message.id);
    if (waiting === undefined) return; // It came after its timeout.
    this.waiting.delete(message.id);
    clearTimeout(waiting.timer);
    if (message.error) {
      waiting.reject(new BridgeError(message.error.code, message.error.message));
    } else {
      waiting.resolve(message.result);
    }
  }

  private lost(): void {
    this.socket = null;
    this.buffer = "";
    for (const { reject, timer } of this.waiting.values()) {
      clearTimeout(timer);
      reject(new BridgeError("offline", "The line to the daemon broke."));
    }
    this.waiting.clear();
    this.onStatus({ state: "offline", pending: { up: 0, down: 0 }, conflicts: [] });
    this.retry();
  }

  private retry(): void {
    if (this.closed) return;
    const wait = BACKOFF_MS[Math.min(this.attempt, BACKOFF_MS.length - 1)];
    this.attempt += 1;
    setTimeout(() => void this.open(), wait);
  }
}
