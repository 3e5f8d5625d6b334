// Generated from the description of the admin API by `make docs`.

/** A change of an adapter; fields that are left out stay. */
export interface AdapterChange {
  /** Swap: the version that the name is to lead to. */
  version?: string;
  /** Have engines keep it loaded. Operators only. */
  pinned?: boolean;
  /** Take no new requests; running ones finish. */
  drained?: boolean;
  /** For people. */
  description?: string;
  /** Who may use it; null: everybody. Operators only. */
  tenants?: string[] | null;
}

/** What a version of an adapter contains. */
export interface AdapterContent {
  size: number;
  max_rank: number;
  dtypes: string[];
  architecture: string;
  modules: string[];
}

/** The public name of an adapter, its version, and what that contains. */
export interface AdapterDetails {
  name: string;
  model: string;
  version: string;
  tenants: string[] | null;
  pinned: boolean;
  drained: boolean;
  description: string;
  updated_at: number;
  resident_on: string[];
  content: AdapterContent;
  /** Turns that run with it under this name: of this gateway now, of others a second ago. Null for those who may not change it, and while a gateway does not tell. */
  running_turns: number | null;
}

/** The parts of an upload. */
export interface AdapterForm {
  request: AdapterUpload;
  config: string;
  weights: string;
}

export interface AdapterList {
  data: AdapterState[];
  next: string | null;
}

/** An adapter that is to be fetched. */
export interface AdapterRegistration {
  /** What clients will give as `model`. */
  name: string;
  /** Public name of the base model; needed if there are several. */
  model?: string | null;
  /** Who may use it; null: everybody. Operators only. */
  tenants?: string[] | null;
  /** Have engines keep it loaded. Operators only. */
  pinned?: boolean;
  /** For people. */
  description?: string;
  /** If the name exists, have it lead here; tenants, pin and description stay. */
  replace?: boolean;
  /** Address of its folder, below one of `adapters.sources`. Operators only. */
  source: string;
}

/** The public name of an adapter, and the version that it leads to. */
export interface AdapterState {
  name: string;
  model: string;
  version: string;
  tenants: string[] | null;
  pinned: boolean;
  drained: boolean;
  description: string;
  updated_at: number;
  resident_on: string[];
}

/** An adapter whose files are sent along. */
export interface AdapterUpload {
  /** What clients will give as `model`. */
  name: string;
  /** Public name of the base model; needed if there are several. */
  model?: string | null;
  /** Who may use it; null: everybody. Operators only. */
  tenants?: string[] | null;
  /** Have engines keep it loaded. Operators only. */
  pinned?: boolean;
  /** For people. */
  description?: string;
  /** If the name exists, have it lead here; tenants, pin and description stay. */
  replace?: boolean;
}

/** A version that a name leads to, or has led to. */
export interface AdapterVersion {
  version: string;
  current: boolean;
  /** When the name was pointed elsewhere; null: it leads there now. */
  until: number | null;
  /** Whether its files are still in the registry. */
  present: boolean;
}

export interface AdapterVersions {
  data: AdapterVersion[];
}

/** One thing that needs attention. */
export interface Alert {
  kind: "budget" | "cache_tripped" | "canary_out" | "replica_lost";
  level: "critical" | "notice" | "warning";
  /** Null: it concerns the whole installation. */
  tenant?: string | null;
  /** What it is about: `tenant`, `key:ci`, a route, a replica. */
  subject: string;
  /** Of a budget: field of the quota. */
  limit?: string | null;
  /** Of a budget: the part that is used or reserved. */
  share?: number | null;
  sentence: string;
}

export interface AlertList {
  data: Alert[];
}

/** One change, as the log holds it. */
export interface AuditEntry {
  sequence: number;
  /** Milliseconds since 1970 by Redis' clock. */
  at: number;
  actor: string;
  action: string;
  subject: string;
  tenant: string | null;
  /** Field to [before, after]; of secret fields only that they changed. */
  changes: Record<string, unknown>;
  hash: string;
}

export interface AuditList {
  data: AuditEntry[];
  next: string | null;
}

/** What checking the log has found. */
export interface AuditVerification {
  intact: boolean;
  /** Entries that were found good. */
  entries: number;
  /** Number of the first entry that is still there. */
  first: number;
  last: number;
  /** Where it is broken first, and how. */
  problem: string | null;
}

/** What the evidence says of one band, for people. */
export interface BandReport {
  bound: number;
  compared: number;
  wrong: number;
  share: number;
  low: number;
  high: number;
  standing: PromiseStanding;
  lacking: number;
}

/** The inputs that probabilities are based on. */
export type Basis = "embedding" | "features";

/** One session. */
export interface BrowserSessionState {
  id: string;
  tenant: string | null;
  user: string | null;
  /** `link`, or the name of an identity provider. */
  method: string;
  operator: boolean;
  scopes: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[];
  began_at: number;
  /** When it ends in any case, in seconds since 1970. */
  expires_at: number;
  /** Whether it is the one that asks. */
  current: boolean;
}

/** A number for each tier. */
export interface ByTier {
  small: number;
  medium: number;
  large: number;
}

/** Counters of a tenant. */
export interface CacheCounters {
  counters: Record<string, number>;
  exact_hit_rate: number | null;
  semantic_hit_rate: number | null;
  prefix_hit_rate: number | null;
  tenant: string;
  hours: number;
  semantic: BandReport[];
}

/** Counters of one hour in which something was counted. */
export interface CacheHour {
  counters: Record<string, number>;
  exact_hit_rate: number | null;
  semantic_hit_rate: number | null;
  prefix_hit_rate: number | null;
  /** Hour of UTC, such as 2026-11-22T14. */
  hour: string;
}

export interface CacheHours {
  data: CacheHour[];
  total: CacheSums;
  /** Null of all tenants together, and where the semantic cache is off. */
  semantic: SimilarAnswersState | null;
}

export interface CacheStatistics {
  data: CacheCounters[];
}

/** Counters of some time; docs/caching.md says what each counts. */
export interface CacheSums {
  counters: Record<string, number>;
  exact_hit_rate: number | null;
  semantic_hit_rate: number | null;
  prefix_hit_rate: number | null;
}

/** A way in which an answer can fail. */
export type CanarySignal = "error" | "poor" | "slow";

export interface CommentList {
  data: CommentState[];
  next: string | null;
}

/** What somebody wrote beside a rating. */
export interface CommentState {
  /** Id of the response that it is about. */
  turn: string;
  /** When, in milliseconds since 1970. */
  at: number;
  rating: "down" | "up";
  reason: string | null;
  comment: string;
}

/** A response beside which another one was preferred. */
export interface Compared {
  response: string;
  tier: string;
}

/** Conversations in which one thing went wrong. */
export interface Counted {
  stable: number;
  canary: number;
}

export interface DecisionList {
  data: DecisionState[];
  next: string | null;
}

/** One logged decision, and how its turn ended. */
export interface DecisionState {
  response: string;
  /** Time when the response ended, in milliseconds since 1970. */
  at: number;
  /** Tier that answered. */
  tier: string;
  /** Tier that was chosen. */
  chosen: string;
  source: ValueSource;
  values: ByTier;
  costs: ByTier;
  /** Value less price of cost and delay: the highest is chosen. */
  utilities: ByTier;
  delays: ByTier;
  price: number;
  complexity: number;
  propensity: number;
  reasons: string[];
  features: Record<string, number>;
  model: string;
  outcome: string;
  input_tokens: number;
  output_tokens: number;
  /** Whether the logged values lead to the same decision again. */
  reproducible: boolean;
  /** Tier that `quality` would have chosen, if that was given. */
  otherwise: string | null;
}

/** A text as a first message. */
export interface ExplainedText {
  /** It is read and kept nowhere. */
  prompt: string;
  /** Position of the quality knob; null: as configured. */
  quality?: number | null;
}

/** A user's judgement of a response, given or inferred from what they did next. */
export interface Feedback {
  response: string;
  at: number;
  signal: "down" | "edit" | "preferred" | "regenerate" | "up" | "withdrawn";
  reason?: "incomplete" | "off_format" | "too_slow" | "unsafe" | "wrong" | null;
  tier?: string;
  over?: Compared[];
}

/** Milliseconds that so many percent of turns did not exceed. */
export interface FirstTokenTimes {
  p50: number;
  p95: number;
}

/** The answers that one tenant has stored. */
export interface Holding {
  entries: number;
  bytes: number;
  data: StoredAnswerInfo[];
}

export interface JobList {
  data: RegistrationJob[];
  next: string | null;
}

/** States of a job: QUEUED -> FETCHING -> CHECKING -> LOADING -> SUCCEEDED; FAILED from each but the last. Uploads skip FETCHING. */
export type JobState = "checking" | "failed" | "fetching" | "loading" | "queued" | "succeeded";

/** What the judge did on a day of UTC, for all gateways. */
export interface JudgeDayState {
  /** Such as 2026-11-26. */
  day: string;
  /** Pairs of answers that were to be judged. */
  sampled: number;
  /** Of these, those that were, by opinion. */
  judged: Record<string, number>;
  /** Those that were not, by reason. */
  refused: Record<string, number>;
  /** With what is reserved for what is being judged. */
  spent_microdollars: number;
}

/** The judge as it is configured, and its last days. */
export interface JudgeState {
  /** Pool whose model judges; null: nobody does. */
  pool: string | null;
  share: number;
  dollars_per_day: number;
  /** The newest first; today has begun at midnight of UTC. */
  data: JudgeDayState[];
}

/** An API key, of which only a keyed digest is stored. */
export interface KeyChange {
  /** For people. */
  description?: string;
  /** What it may do. */
  scopes?: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[];
  /** Whether its admin scopes reach every tenant. */
  operator?: boolean;
  /** From then on it is refused; null: never. */
  expires_at?: number | null;
  /** What it may use beside the tenant's quota. */
  quota?: QuotaInput | null;
  /** Refuse it. */
  disabled?: boolean;
}

export interface KeyList {
  data: KeyState[];
  next: string | null;
}

/** An API key, of which only a keyed digest is stored. */
export interface KeyState {
  /** Name of the key in logs. */
  id: string;
  tenant: string;
  /** Whose it is, if it is a person's. */
  user: string | null;
  /** For people. */
  description: string;
  /** What it may do. */
  scopes: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[];
  /** Whether its admin scopes reach every tenant. */
  operator: boolean;
  /** From then on it is refused; null: never. */
  expires_at: number | null;
  /** What it may use beside the tenant's quota. */
  quota: Quota | null;
  /** Refuse it. */
  disabled: boolean;
  /** The key in whose place it was made. */
  replaces: string | null;
  /** The first of the keys that it replaces: limits count all of them together. */
  counts_as: string | null;
  /** When a request last came with it, to the minute; null: never. The ETag is without it. */
  last_used_at?: number | null;
  /** It is set in the configuration file. */
  read_only: boolean;
  created_at: number;
  updated_at: number;
}

/** One turn in the ledger. */
export interface LedgerTurn {
  turn: string;
  /** Time when it ended, in milliseconds since 1970. */
  at: number;
  tenant: string;
  key: string;
  user: string | null;
  model: string;
  adapter: string | null;
  tier: string;
  outcome: "blocked" | "cancelled" | "completed" | "failed" | "incomplete" | "lost" | "refused";
  cache: "bypass" | "hit" | "miss";
  cache_reason: string;
  input_tokens: number;
  cached_input_tokens: number;
  output_tokens: number;
  /** Rounded up; null if the model had no price. */
  cost_microdollars: number | null;
  /** From the request to the end; null if it was not measured. */
  milliseconds: number | null;
  /** From the request to the first token; null without one. */
  first_token_ms: number | null;
  /** Part of it in the engine's queue; null without one. */
  queue_ms: number | null;
}

export interface LimitList {
  data: LimitStanding[];
}

/** One limit of one subject, in tokens, requests, turns, sockets or micro-dollars. */
export interface LimitStanding {
  subject: string;
  limit: string;
  most: number;
  used: number;
  held: number;
  left: number;
  reset_seconds: number | null;
  warning: boolean;
}

/** The caller. */
export interface Me {
  /** Operators reach every tenant, admins their own. */
  role: "operator" | "tenant_admin";
  /** Tenant of the caller; null for an operator who signed in where there is none. */
  tenant: string | null;
  user: string | null;
  /** Id of the API key, or what stands for it in the audit log. */
  key: string;
  scopes: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[];
  /** How it signed in; null: a key or token was sent. */
  session: SignInSession | null;
  /** Groups of endpoints, by their tag, of which some serve the caller: for reading and changing. */
  may: Record<string, ("read" | "write")[]>;
  /** Version of the gateway. */
  version: string;
  /** How people can sign in here. */
  sign_in: SignInMethods;
}

export interface ModelList {
  data: ModelState[];
}

/** Price of a model's tokens, in micro-dollars per million. */
export interface ModelPrice {
  input: number;
  output: number;
  cached_input: number | null;
}

/** One model, as its engines have reported it. */
export interface ModelState {
  name: string;
  tier: string;
  /** Tokens of prompt and output together. */
  context_length: number;
  /** Digests of its files; normally one. */
  revisions: string[];
  replicas: number;
  /** Replicas that answer. */
  connected: number;
  price: ModelPrice | null;
}

/** An API key, of which only a keyed digest is stored. */
export interface NewKey {
  /** Whose it is, if it is a person's. */
  user?: string | null;
  /** For people. */
  description?: string;
  /** What it may do. */
  scopes?: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[];
  /** Whether its admin scopes reach every tenant. */
  operator?: boolean;
  expires_at?: number | null;
  /** What it may use beside the tenant's quota. */
  quota?: QuotaInput | null;
  /** Refuse it. */
  disabled?: boolean;
}

/** A key that was just made. */
export interface NewKeyShown {
  /** The key itself, this once; null if the request was answered before: rotate it then. */
  key: string | null;
  record: KeyState;
}

/** What single users and adapters of a tenant may use. All of it is replaced at once. */
export interface NewOwnQuotas {
  /** Of users, by their ids. */
  users?: Record<string, QuotaInput>;
  /** Of adapters. Where operators have set a limit, too, the stricter one counts. */
  adapters?: Record<string, QuotaInput>;
}

/** What tokens of a model or an adapter cost, in micro-dollars (a dollar is 1,000,000) per million tokens. */
export interface NewPrice {
  name: string;
  /** Price of prompt tokens that were computed. */
  input: number;
  /** Price of generated tokens. */
  output: number;
  /** Prompt tokens found in the prefix cache; null: as `input`. */
  cached_input?: number | null;
}

/** A public name whose requests are shared among several models or adapters. */
export interface NewRoute {
  name: string;
  /** The first one is the stable one, which others are compared with. */
  targets: TargetInput[];
  /** A first token later than this counts against a target; null: none does. */
  slow_seconds?: number | null;
  /** Gets copies of requests that the first target has answered. */
  shadow?: ShadowInput | null;
  /** For people. */
  description?: string;
  disabled?: boolean;
  /** Whose it is: nobody else has it, and its admins change it; null: everybody's. */
  tenant?: string | null;
}

/** A customer or team. */
export interface NewTenant {
  name: string;
  /** For people. */
  description?: string;
  /** Share of an engine beside others of its class. */
  weight?: number;
  /** Class of requests that name no `service_tier`. */
  service?: "batch" | "premium" | "standard";
  /** Classes it may ask for beside its own. */
  services?: ("batch" | "premium" | "standard")[];
  /** What it may use; a field left out: as in `[limits]`. */
  quota?: QuotaInput | null;
  /** What it may use of single models. */
  model_quotas?: Record<string, QuotaInput>;
  /** What it may use of single adapters. */
  adapter_quotas?: Record<string, QuotaInput>;
  /** What its own admins let it use of single adapters; the stricter of both counts. */
  own_adapter_quotas?: Record<string, QuotaInput>;
  /** What single users may use, by their ids. */
  user_quotas?: Record<string, QuotaInput>;
  /** Models and adapters it may use; null: all that are open to it. */
  models?: string[] | null;
  /** What to do with parameters that no request has. */
  unknown_parameters?: "ignore" | "refuse";
  /** Refuse all its requests. */
  disabled?: boolean;
}

/** What a tenant may use. All of it is replaced at once. */
export interface NewTenantQuotas {
  /** In all; a field left out: as in `[limits]`. */
  quota?: QuotaInput | null;
  /** Of single models. */
  models?: Record<string, QuotaInput>;
  /** Of single adapters. */
  adapters?: Record<string, QuotaInput>;
}

/** A person or service of a tenant, known by what an identity provider calls it. */
export interface NewUser {
  /** The `sub` of its tokens; unique in the tenant. */
  subject: string;
  /** For people. */
  description?: string;
  /** What it may do; null: what its tokens or keys say. */
  scopes?: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[] | null;
  /** Refuse all its requests. */
  disabled?: boolean;
}

/** Why a canary was taken out. */
export interface OutState {
  at: number;
  signal: CanarySignal;
  turns: number;
  stable_turns: number;
  failures: Counted;
  evidence: number;
}

/** The belief about a request before a price is known. */
export interface Outlook {
  source: ValueSource;
  complexity: number;
  prediction?: Prediction | null;
  medium_from?: number;
  large_from?: number;
  lot?: number;
  costs?: [number, number, number] | null;
}

/** A period beside the period of equal length before. */
export interface OverviewState {
  hours: number;
  /** First hour, in UTC. */
  from: string;
  /** End, not included: the hour after this one. */
  to: string;
  tenant: string | null;
  current: PeriodFigures;
  before: PeriodFigures;
  /** The period by hour, if it is longer than 72 hours by day. */
  series: UsageRow[];
  alerts: Alert[];
}

/** What single users and adapters of a tenant may use. All of it is replaced at once. */
export interface OwnQuotas {
  /** Of users, by their ids. */
  users?: Record<string, Quota>;
  /** Of adapters. Where operators have set a limit, too, the stricter one counts. */
  adapters?: Record<string, Quota>;
}

/** What was done in a period. Rates are null where nothing was counted. */
export interface PeriodFigures {
  turns: number;
  cache_hits: number;
  input_tokens: number;
  cached_input_tokens: number;
  output_tokens: number;
  cost_microdollars: number;
  /** Turns that the response cache answered, of all. */
  hit_rate: number | null;
  /** Prompt tokens found in prefix caches, of all. */
  prefix_hit_rate: number | null;
  /** The newest turns, 5,000 at most: the next three are theirs. */
  sampled_turns: number;
  /** Turns that failed, or whose gateway died. */
  errors: number;
  error_rate: number | null;
  first_token_ms: FirstTokenTimes | null;
}

/** One figure of a plan. */
export interface PlanFigure {
  name: string;
  value: number;
  unit: string;
  why: string;
}

/** A plan, and what can be planned. */
export interface PlanState {
  models: string[];
  hardware: string[];
  plan: ReplicaPlan | null;
  problem: string | null;
  detail: string | null;
  alternatives: ReplicaPlan[];
  command: string | null;
}

/** Why a pool has the size that it has, for programs, which may say it in another language. */
export interface PoolCause {
  kind: string;
  sentence: string;
  figures: Record<string, number | string>;
  alert: boolean;
}

/** How many engines a pool may have. Without a record: as many as the configuration says. */
export interface PoolChange {
  /** Fewest engines; null: the configuration's number. */
  min_replicas?: number | null;
  /** Most engines; null: the configuration's number. */
  max_replicas?: number | null;
}

export interface PoolList {
  data: PoolState[];
}

/** What operators are told of a pool whose number of engines follows its load. */
export interface PoolSize {
  pool: string;
  desired: number;
  ready: number;
  starting: number;
  draining: number;
  min_replicas: number;
  max_replicas: number;
  offered: number;
  since: number;
  looked: number;
  reasons: string[];
  alerts: string[];
  causes: PoolCause[];
}

/** A model and the engines that serve it. */
export interface PoolState {
  pool: string;
  tier: string;
  weight: number;
  model: string;
  dialect: string;
  context_length: number;
  revisions: string[];
  replicas: ReplicaState[];
  size: PoolSize | null;
}

/** Probability that each tier answers well, small to large, or why there is none. */
export interface Prediction {
  probabilities: [number, number, number] | null;
  basis: Basis;
  strangeness: number;
  similarity?: number | null;
}

export interface PriceList {
  data: PriceState[];
  next: string | null;
}

/** What tokens of a model or an adapter cost, in micro-dollars (a dollar is 1,000,000) per million tokens. */
export interface PriceReplacement {
  /** Price of prompt tokens that were computed. */
  input: number;
  /** Price of generated tokens. */
  output: number;
  /** Prompt tokens found in the prefix cache; null: as `input`. */
  cached_input?: number | null;
}

/** What tokens of a model or an adapter cost, in micro-dollars (a dollar is 1,000,000) per million tokens. */
export interface PriceState {
  /** Of a model or an adapter. */
  name: string;
  /** Price of prompt tokens that were computed. */
  input: number;
  /** Price of generated tokens. */
  output: number;
  /** Prompt tokens found in the prefix cache; null: as `input`. */
  cached_input: number | null;
  /** It is set in the configuration file. */
  read_only: boolean;
  created_at: number;
  updated_at: number;
}

/** An error by RFC 9457. Programs read `code`; docs/errors.md lists the codes. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  param?: string | null;
}

/** What the evidence says of a band. */
export type PromiseStanding = "broken" | "kept" | "unproven";

/** Limits of one subject. A field that is left out limits nothing, or takes the value of what stands behind it. */
export interface Quota {
  /** Requests per minute. */
  requests_per_minute?: number | null;
  /** Input tokens per minute. */
  input_tokens_per_minute?: number | null;
  /** Output tokens per minute. */
  output_tokens_per_minute?: number | null;
  /** Seconds of the rates that may be used at once. */
  burst_seconds?: number | null;
  /** Turns that run at the same time. */
  concurrent_turns?: number | null;
  /** Open WebSockets of all gateways together. */
  open_sockets?: number | null;
  /** Micro-dollars (a dollar is 1,000,000) per day, which begins at 0:00 UTC. */
  spend_per_day?: number | null;
  /** Micro-dollars per month, which begins on its first day at 0:00 UTC. */
  spend_per_month?: number | null;
  /** What a turn reserves for its answer: strict reserves the output limit, so that no limit is exceeded; expected reserves what such answers mostly need, so that more turns run. */
  mode?: "expected" | "strict" | null;
}

/** Limits of one subject. A field that is left out limits nothing, or takes the value of what stands behind it. */
export interface QuotaInput {
  /** Requests per minute. */
  requests_per_minute?: number | null;
  /** Input tokens per minute. */
  input_tokens_per_minute?: number | null;
  /** Output tokens per minute. */
  output_tokens_per_minute?: number | null;
  /** Seconds of the rates that may be used at once. */
  burst_seconds?: number | null;
  /** Turns that run at the same time. */
  concurrent_turns?: number | null;
  /** Open WebSockets of all gateways together. */
  open_sockets?: number | null;
  /** Micro-dollars (a dollar is 1,000,000) per day, which begins at 0:00 UTC. */
  spend_per_day?: number | null;
  /** Micro-dollars per month, which begins on its first day at 0:00 UTC. */
  spend_per_month?: number | null;
  /** What a turn reserves for its answer: strict reserves the output limit, so that no limit is exceeded; expected reserves what such answers mostly need, so that more turns run. */
  mode?: "expected" | "strict" | null;
}

/** One sign of difficulty, and what it added to the score. */
export interface Reason {
  sign: string;
  contribution: number;
  sentence: string;
}

/** The result of a job. */
export interface Registered {
  adapter: string;
  version: string;
  loaded_on: string | null;
}

/** Work that goes on after its request was answered. Kept for a day. */
export interface RegistrationJob {
  id: string;
  kind: "adapter.register";
  tenant: string | null;
  adapter: string;
  state?: JobState;
  /** Of the present state's work. */
  progress?: number;
  result?: Registered | null;
  error?: Problem | null;
  created_at?: number;
  updated_at?: number;
}

/** Logged decisions together, and the same at another position of the knob. */
export interface Replay {
  decisions: number;
  since: number | null;
  until: number | null;
  reasons: Record<string, number>;
  answered: TierShare[];
  otherwise: TierShare[] | null;
  changed: number | null;
}

/** How much one engine is to be used. Without a record: as much as any other. */
export interface ReplicaChange {
  /** Share of its pool's turns beside the other replicas'. */
  weight?: number;
  /** Send it no new turns; running ones finish. */
  drained?: boolean;
  /** Seconds after which turns that still run on a drained replica go on in others of its pool; null: they finish where they are. */
  move_after?: number | null;
}

/** The engine's own report, at most a second old. */
export interface ReplicaLoad {
  running: number;
  waiting: number;
  waiting_tokens: number;
  total_blocks: number;
  free_blocks: number;
  cached_blocks: number;
  predicted_queue_seconds: number;
  step_seconds: number;
  adapters: string[];
}

/** A plan for one kind of replica. */
export interface ReplicaPlan {
  model: string;
  hardware: string;
  replicas: number;
  binds: string;
  figures: PlanFigure[];
}

/** One engine, as this gateway sees it. */
export interface ReplicaState {
  name: string;
  pool: string;
  weight: number;
  drained: boolean;
  move_after: number | null;
  turns: number;
  connected: boolean;
  registered: boolean;
  zone: string;
  spot: boolean;
  circuit: string;
  carried_tokens: number;
  load: ReplicaLoad | null;
}

export interface Rotation {
  /** How long the old key still works. */
  overlap_seconds?: number;
  expires_at?: number | null;
}

/** The tier that would be chosen, and why. */
export interface RouteExplanation {
  tier: string;
  source: ValueSource;
  values: ByTier;
  costs: ByTier;
  utilities: ByTier;
  price: number;
  complexity: number;
  /** Up to 1 is familiar; null if the model is off. */
  strangeness: number | null;
  reasons: string[];
  complexity_reasons: Reason[];
  features: Record<string, number>;
  model: string;
  choice: TierChoice;
}

export interface RouteList {
  data: RouteState[];
  next: string | null;
}

/** A public name whose requests are shared among several models or adapters. */
export interface RouteReplacement {
  /** The first one is the stable one, which others are compared with. */
  targets: TargetInput[];
  /** A first token later than this counts against a target; null: none does. */
  slow_seconds?: number | null;
  /** Gets copies of requests that the first target has answered. */
  shadow?: ShadowInput | null;
  /** For people. */
  description?: string;
  disabled?: boolean;
}

/** A public name whose requests are shared among several models or adapters. */
export interface RouteState {
  /** What clients give as `model`. */
  name: string;
  /** The first one is the stable one, which others are compared with. */
  targets: Target[];
  /** A first token later than this counts against a target; null: none does. */
  slow_seconds: number | null;
  /** Gets copies of requests that the first target has answered. */
  shadow: Shadow | null;
  /** For people. */
  description: string;
  disabled: boolean;
  /** Whose it is: nobody else has it, and its admins change it; null: everybody's. */
  tenant: string | null;
  /** It is set in the configuration file. */
  read_only: boolean;
  created_at: number;
  updated_at: number;
}

export interface SessionList {
  data: BrowserSessionState[];
}

export interface SettingList {
  data: SettingState[];
}

/** One field of one section. */
export interface SettingState {
  section: string;
  name: string;
  /** Passwords in addresses are left out. */
  value: unknown;
  /** Whether it is what holds where nothing is configured. */
  default: boolean;
  /** Whether it may change while a gateway runs. */
  changeable: boolean;
}

/** A model that is tried with copies of requests; nobody sees its answers. */
export interface Shadow {
  /** Model or adapter that the copies go to. */
  model: string;
  /** Part of the route's conversations that is copied. */
  percent: number;
}

/** A model that is tried with copies of requests; nobody sees its answers. */
export interface ShadowInput {
  /** Model or adapter that the copies go to. */
  model: string;
  /** Part of the route's conversations that is copied. */
  percent: number;
}

/** Copies of turns compared with the turns themselves since the route was last changed. */
export interface ShadowState {
  model: string;
  percent: number;
  copies: number;
  given_up: number;
  errors: Counted;
  evidence: number;
  compared: number;
  agreement: number | null;
  first_token_ms: number | null;
  stable_first_token_ms: number | null;
}

/** How people can sign in. */
export interface SignInMethods {
  key: boolean;
  providers: SignInProvider[];
  link: string;
}

/** A provider at which people can sign in. */
export interface SignInProvider {
  name: string;
  title: string;
  address: string;
}

/** How somebody has signed in. */
export interface SignInSession {
  method: string;
  expires_at: number;
}

/** How many answers to similar questions are wrong, beside how many may be. */
export interface SimilarAnswersState {
  /** Highest share that may be wrong, `max_wrong_hits`. */
  promise: number;
  /** What comparisons show, of the surest answers first. */
  bands: BandReport[];
}

/** One stored answer, without its text. */
export interface StoredAnswerInfo {
  digest: string;
  model: string;
  tier: string;
  scope: string;
  tags: string[];
  input_tokens: number;
  output_tokens: number;
  bytes: number;
  created: number;
  expires: number;
  valid: boolean;
  semantic?: string | null;
  text?: string | null;
}

/** A model or adapter of a route, and its weight. */
export interface Target {
  /** Model or adapter that answers. */
  model: string;
  /** Share of the route's requests beside the others'. */
  weight: number;
}

/** A model or adapter of a route, and its weight. */
export interface TargetInput {
  /** Model or adapter that answers. */
  model: string;
  /** Share of the route's requests beside the others'. */
  weight: number;
}

/** A customer or team. */
export interface TenantChange {
  /** For people. */
  description?: string;
  /** Share of an engine beside others of its class. */
  weight?: number;
  /** Class of requests that name no `service_tier`. */
  service?: "batch" | "premium" | "standard";
  /** Classes it may ask for beside its own. */
  services?: ("batch" | "premium" | "standard")[];
  /** What it may use; a field left out: as in `[limits]`. */
  quota?: QuotaInput | null;
  /** What it may use of single models. */
  model_quotas?: Record<string, QuotaInput>;
  /** What it may use of single adapters. */
  adapter_quotas?: Record<string, QuotaInput>;
  /** What its own admins let it use of single adapters; the stricter of both counts. */
  own_adapter_quotas?: Record<string, QuotaInput>;
  /** What single users may use, by their ids. */
  user_quotas?: Record<string, QuotaInput>;
  /** Models and adapters it may use; null: all that are open to it. */
  models?: string[] | null;
  /** What to do with parameters that no request has. */
  unknown_parameters?: "ignore" | "refuse";
  /** Refuse all its requests. */
  disabled?: boolean;
}

export interface TenantList {
  data: TenantState[];
  next: string | null;
}

/** What a tenant may use. All of it is replaced at once. */
export interface TenantQuotas {
  /** In all; a field left out: as in `[limits]`. */
  quota?: Quota | null;
  /** Of single models. */
  models?: Record<string, Quota>;
  /** Of single adapters. */
  adapters?: Record<string, Quota>;
}

/** A customer or team. */
export interface TenantState {
  /** Name in logs, statistics and Redis keys. */
  name: string;
  /** For people. */
  description: string;
  /** Share of an engine beside others of its class. */
  weight: number;
  /** Class of requests that name no `service_tier`. */
  service: "batch" | "premium" | "standard";
  /** Classes it may ask for beside its own. */
  services: ("batch" | "premium" | "standard")[];
  /** What it may use; a field left out: as in `[limits]`. */
  quota: Quota | null;
  /** What it may use of single models. */
  model_quotas: Record<string, Quota>;
  /** What it may use of single adapters. */
  adapter_quotas: Record<string, Quota>;
  /** What its own admins let it use of single adapters; the stricter of both counts. */
  own_adapter_quotas: Record<string, Quota>;
  /** What single users may use, by their ids. */
  user_quotas: Record<string, Quota>;
  /** Models and adapters it may use; null: all that are open to it. */
  models: string[] | null;
  /** What to do with parameters that no request has. */
  unknown_parameters: "ignore" | "refuse";
  /** Refuse all its requests. */
  disabled: boolean;
  /** It is set in the configuration file. */
  read_only: boolean;
  created_at: number;
  updated_at: number;
}

/** Prices of cost and delay. */
export interface Terms {
  price: number;
  middle: number;
  costs: [number, number, number];
  delay_price?: number;
  explore?: number;
}

/** A tier, and all values that it was chosen by. */
export interface TierChoice {
  tier: string;
  outlook: Outlook;
  terms: Terms;
  delays?: [number, number, number];
  offered?: string[];
  floor?: string | null;
  draw?: number;
  values: [number, number, number];
  utilities: [number, number, number];
  propensity: number;
}

/** Decisions for one tier. */
export interface TierShare {
  tier: string;
  decisions: number;
  share: number;
  input_tokens: number;
  output_tokens: number;
  cost_microdollars: number | null;
}

export interface TrialList {
  data: TrialState[];
  shadow: ShadowState | null;
}

/** A canary compared with the stable target since the route was last changed. */
export interface TrialState {
  model: string;
  weight: number;
  turns: number;
  stable_turns: number;
  error: Counted;
  slow: Counted;
  poor: Counted;
  evidence: number;
  taken_out_from: number;
  taken_out: OutState | null;
}

/** One turn with its decision and feedback. */
export interface TurnDetails {
  turn: LedgerTurn;
  /** Null if the request named its model, or the log has it no more. */
  decision: DecisionState | null;
  feedback: Feedback[];
  /** What was written beside the last rating. Null if nothing was, and for other tenants' admins. */
  comment: string | null;
}

export interface TurnList {
  data: LedgerTurn[];
  next: string | null;
}

/** Sums of a time; a row for each that has used something. */
export interface UsagePeriod {
  from: string;
  to: string;
  /** Whether rows leave turns out that `total` counts: rows by user need single turns. */
  partial: boolean;
  data: UsageRow[];
  total: UsageSums;
}

/** Sums of a time, and of the one before if they are to be compared. */
export interface UsageReport {
  from: string;
  to: string;
  /** Whether rows leave turns out that `total` counts: rows by user need single turns. */
  partial: boolean;
  data: UsageRow[];
  total: UsageSums;
  by: string;
  split: string | null;
  /** The time of equal length before; null unless asked for. */
  before: UsagePeriod | null;
}

export interface UsageRow {
  turns: number;
  cache_hits: number;
  input_tokens: number;
  cached_input_tokens: number;
  output_tokens: number;
  cost_microdollars: number;
  /** Of the day (2026-11-22), hour (2026-11-22T14), model, adapter, key, user or tenant. */
  name: string;
  /** The same of the second division. */
  split?: string | null;
}

export interface UsageSums {
  turns: number;
  cache_hits: number;
  input_tokens: number;
  cached_input_tokens: number;
  output_tokens: number;
  cost_microdollars: number;
}

/** A person or service of a tenant, known by what an identity provider calls it. */
export interface UserChange {
  /** The `sub` of its tokens; unique in the tenant. */
  subject?: string;
  /** For people. */
  description?: string;
  /** What it may do; null: what its tokens or keys say. */
  scopes?: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[] | null;
  /** Refuse all its requests. */
  disabled?: boolean;
}

export interface UserList {
  data: UserState[];
  next: string | null;
}

/** A person or service of a tenant, known by what an identity provider calls it. */
export interface UserState {
  id: string;
  tenant: string;
  /** The `sub` of its tokens; unique in the tenant. */
  subject: string;
  /** For people. */
  description: string;
  /** What it may do; null: what its tokens or keys say. */
  scopes: ("adapters" | "admin:read" | "admin:write" | "chat" | "models")[] | null;
  /** Refuse all its requests. */
  disabled: boolean;
  /** It is set in the configuration file. */
  read_only: boolean;
  created_at: number;
  updated_at: number;
}

/** The source of the values of tiers. */
export type ValueSource = "complexity" | "learnt" | "mixture" | "uncertain";
