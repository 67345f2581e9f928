-- The tables of run.sqlite and of each person's file. Every change needs a migration in database.py.
CREATE TABLE experiment (             -- one row for each change to the experiment, to skillmix or to the machine
    version  INTEGER PRIMARY KEY,
    yaml     TEXT NOT NULL,
    at       TEXT,                    -- UTC; NULL, like the next three, if an older version did not record it
    skillmix TEXT,
    python   TEXT,
    machine  TEXT,
    notes    TEXT NOT NULL            -- JSON: hashes of prompt sets, and other facts about the command
) STRICT;
CREATE TABLE combination (
    id     TEXT PRIMARY KEY,
    skills TEXT NOT NULL,             -- JSON list, in prompt order
    topic  TEXT NOT NULL
) STRICT;
CREATE TABLE message (
    hash    TEXT PRIMARY KEY,
    role    TEXT NOT NULL,
    content TEXT NOT NULL
) STRICT;
CREATE TABLE call (                   -- one row for each key, written before anyone uses the reply
    id            INTEGER PRIMARY KEY,
    stage         TEXT NOT NULL CHECK (stage IN ('generate', 'grade')),
    student       TEXT NOT NULL,
    combination   TEXT NOT NULL,
    generation    INTEGER NOT NULL,
    turn          INTEGER,
    text          TEXT,
    grader        TEXT,
    round         INTEGER,
    attempt       INTEGER,
    model         TEXT NOT NULL,
    messages      TEXT NOT NULL,      -- JSON list of hashes
    decoding      TEXT NOT NULL,      -- JSON
    seed          INTEGER,
    request_hash  TEXT NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('done', 'problem', 'submitted')),
    reply         TEXT,               -- hash of a message
    finish        TEXT,
    input_tokens  INTEGER,
    output_tokens INTEGER,
    cost_usd      REAL,
    problem_kind  TEXT,
    problem       TEXT,
    detail        TEXT,
    not_sent      TEXT NOT NULL,      -- JSON list of parameters that the provider does not support
    origin        TEXT NOT NULL CHECK (origin IN ('call', 'imported', 'imported-text')),
    batch         TEXT,               -- the tag of the batch, while the status is 'submitted'
    at            TEXT NOT NULL,      -- UTC
    CHECK ((stage = 'generate') = (turn IS NOT NULL)),
    CHECK ((stage = 'grade')
        = (text IS NOT NULL AND grader IS NOT NULL AND round IS NOT NULL AND attempt IS NOT NULL)),
    CHECK ((status = 'done') = (reply IS NOT NULL)),
    CHECK ((status = 'problem') = (problem_kind IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX generate_key ON call (student, combination, generation, turn) WHERE stage = 'generate';
CREATE UNIQUE INDEX grade_key ON call (student, combination, generation, text, grader, round, attempt)
    WHERE stage = 'grade';
CREATE INDEX submitted_calls ON call (batch) WHERE status = 'submitted';
CREATE TABLE attempt (                -- every request that was sent
    id       INTEGER PRIMARY KEY,
    call     TEXT NOT NULL,           -- key of the call
    outcome  TEXT NOT NULL,           -- 'reply', or the kind of problem
    reason   TEXT NOT NULL,
    seconds  REAL NOT NULL,
    cost_usd REAL,                    -- the possible cost of an attempt without a reply; call has the cost of a reply
    at       TEXT NOT NULL
) STRICT;
CREATE TABLE sent (                   -- calls in flight in a run with a budget, which are charged after a crash
    call     TEXT PRIMARY KEY,
    cost_usd REAL NOT NULL,
    at       TEXT NOT NULL
) STRICT;
CREATE TABLE batch (                  -- recorded before any part of a batch is sent
    tag         TEXT PRIMARY KEY,
    model       TEXT NOT NULL,        -- the name that tasks use, such as 'grader:judge'
    dialect     TEXT NOT NULL,
    address     TEXT NOT NULL,
    requests    INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('written', 'creating', 'created', 'read')),
    file        TEXT,                 -- the provider's id of the uploaded file
    provider_id TEXT,                 -- the provider's id of the batch
    seen        TEXT,                 -- the latest state that the provider reported
    at          TEXT NOT NULL,
    changed     TEXT NOT NULL
) STRICT;
CREATE TABLE excluded (               -- combinations that draws skip, because a student was trained on them
    step        TEXT NOT NULL,
    combination TEXT NOT NULL,
    PRIMARY KEY (step, combination)
) STRICT;
CREATE TABLE uncounted (              -- conversations that an earlier version prefetched, until a step uses them
    student     TEXT NOT NULL,
    combination TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    PRIMARY KEY (student, combination, generation)
) STRICT;
CREATE TABLE step (
    name    TEXT PRIMARY KEY,
    inputs  TEXT NOT NULL,            -- JSON by name: settings, and hashes of content
    result  TEXT,                     -- JSON; NULL for an unfinished training run
    seconds REAL NOT NULL,
    at      TEXT NOT NULL
) STRICT;
CREATE TABLE graded (                 -- the grades of all texts, so that a finished run shows its scores at once
    name    TEXT PRIMARY KEY,         -- the scoring rules
    inputs  TEXT NOT NULL,            -- a hash of everything that determines the content; if it differs, calls are read
    content TEXT NOT NULL             -- JSON
) STRICT;
