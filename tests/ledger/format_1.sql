PRAGMA application_id = 1346454321;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE accounts (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, currency TEXT NOT NULL, declaration TEXT NOT NULL,
        spent REAL NOT NULL DEFAULT 0.0, num_charges INTEGER NOT NULL DEFAULT 0,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')));
INSERT INTO "accounts" VALUES(1,'fit','rpp','{"coupling": {"x": 1}}',1.0,4,'2026-11-22T04:19:52.582Z');
INSERT INTO "accounts" VALUES(2,'clusters','mutual_information','{}',0.5,1,'2026-11-22T04:19:52.604Z');
INSERT INTO "accounts" VALUES(3,'key a','mutual_information by key','{"api_key": "a"}',0.25,3,'2026-11-22T04:19:52.608Z');
CREATE TABLE attempts (
        id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), first_step INTEGER NOT NULL,
        num_steps INTEGER NOT NULL, cost REAL NOT NULL,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')));
INSERT INTO "attempts" VALUES(1,1,0,4,1.0,'2026-11-22T04:19:52.588Z');
CREATE TABLE budgets (
        id INTEGER PRIMARY KEY, currency TEXT, account INTEGER REFERENCES accounts (id), amount REAL NOT NULL,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')));
INSERT INTO "budgets" VALUES(1,'rpp',NULL,8.0,'2026-11-22T04:19:52.576Z');
INSERT INTO "budgets" VALUES(2,NULL,1,8.0,'2026-11-22T04:19:52.582Z');
CREATE TABLE charges (
        id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), cost REAL NOT NULL, event TEXT,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')));
INSERT INTO "charges" VALUES(1,2,0.5,'{"release": "centroids"}','2026-11-22T04:19:52.604Z');
CREATE TABLE entries (
        account INTEGER NOT NULL REFERENCES accounts (id), sequence INTEGER NOT NULL, num_answers INTEGER NOT NULL,
        cost REAL NOT NULL, payload BLOB NOT NULL, tag BLOB NOT NULL,
        PRIMARY KEY (account, sequence)) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('ledger_id','ccc33d7c543143cf90ea74138a183b6c');
CREATE TABLE requests (
        account INTEGER NOT NULL REFERENCES accounts (id), request TEXT NOT NULL, sequence INTEGER NOT NULL,
        position INTEGER NOT NULL, PRIMARY KEY (account, request)) WITHOUT ROWID;
CREATE TABLE snapshots (
        account INTEGER PRIMARY KEY REFERENCES accounts (id), sequence INTEGER NOT NULL, num_answers INTEGER NOT NULL,
        spent REAL NOT NULL, state BLOB NOT NULL, chain BLOB NOT NULL, tag BLOB NOT NULL);
CREATE TABLE transcripts (
        account INTEGER PRIMARY KEY REFERENCES accounts (id), secret TEXT NOT NULL UNIQUE, home TEXT NOT NULL);
CREATE INDEX charges_of_account ON charges (account);
COMMIT;
