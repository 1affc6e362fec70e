BEGIN TRANSACTION;
CREATE TABLE backend (
	id INTEGER NOT NULL, 
	repo_key TEXT NOT NULL, 
	repo TEXT NOT NULL, 
	level TEXT NOT NULL, 
	device TEXT, 
	first_seen DOUBLE NOT NULL, 
	last_seen DOUBLE NOT NULL, 
	CONSTRAINT pk_backend PRIMARY KEY (id), 
	CONSTRAINT uq_backend_repo_key UNIQUE (repo_key)
);
INSERT INTO "backend" VALUES(1,'example/backend','example/backend','L2','spyre',1790000000.0,1790345600.0);
CREATE TABLE branch_commit (
	id INTEGER NOT NULL, 
	upstream TEXT NOT NULL, 
	branch TEXT NOT NULL, 
	sha TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	place INTEGER NOT NULL, 
	CONSTRAINT pk_branch_commit PRIMARY KEY (id), 
	CONSTRAINT uq_branch_commit_upstream_branch_sha UNIQUE (upstream, branch, sha)
);
INSERT INTO "branch_commit" VALUES(1,'pytorch/pytorch','main','1111111111111111111111111111111111111111',1700000000.0,0);
INSERT INTO "branch_commit" VALUES(2,'pytorch/pytorch','main','2222222222222222222222222222222222222222',1700001000.0,1);
INSERT INTO "branch_commit" VALUES(3,'pytorch/pytorch','main','3333333333333333333333333333333333333333',1700002000.0,1);
INSERT INTO "branch_commit" VALUES(4,'pytorch/pytorch','main','4444444444444444444444444444444444444444',1700003000.0,1);
INSERT INTO "branch_commit" VALUES(5,'pytorch/pytorch','main','5555555555555555555555555555555555555555',1700004000.0,1);
CREATE TABLE detail (
	id INTEGER NOT NULL, 
	digest BLOB NOT NULL, 
	fingerprint TEXT NOT NULL, 
	phase TEXT NOT NULL, 
	message TEXT NOT NULL, 
	trace TEXT NOT NULL, 
	CONSTRAINT pk_detail PRIMARY KEY (id), 
	CONSTRAINT uq_detail_digest UNIQUE (digest)
);
INSERT INTO "detail" VALUES(1,X'43323002D9B281176366A09A7D9D54D1','28cda082737c7a14','','it broke','');
INSERT INTO "detail" VALUES(2,X'8BEBF65CFFDED780202C91D6BB7EABC7','2314155f488b0e9b','','','');
INSERT INTO "detail" VALUES(3,X'D00660C3B3B64BC6B1CBF2A72E03A2D0','3401dee557893e0f','','it broke','');
CREATE TABLE failure (
	run_id INTEGER NOT NULL, 
	test_id INTEGER NOT NULL, 
	outcome SMALLINT NOT NULL, 
	seconds DOUBLE, 
	detail_id INTEGER, 
	CONSTRAINT pk_failure PRIMARY KEY (run_id, test_id), 
	CONSTRAINT fk_failure_detail_id FOREIGN KEY(detail_id) REFERENCES detail (id), 
	CONSTRAINT fk_failure_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_failure_test_id FOREIGN KEY(test_id) REFERENCES test (id)
)
 WITHOUT ROWID

;
INSERT INTO "failure" VALUES(2,1,1,0.25,1);
INSERT INTO "failure" VALUES(2,2,1,0.25,1);
INSERT INTO "failure" VALUES(3,1,1,0.25,1);
INSERT INTO "failure" VALUES(4,1,1,0.25,1);
INSERT INTO "failure" VALUES(4,3,1,0.25,1);
INSERT INTO "failure" VALUES(5,1,1,0.25,1);
INSERT INTO "failure" VALUES(5,2,10,0.25,2);
INSERT INTO "failure" VALUES(5,3,1,0.25,1);
INSERT INTO "failure" VALUES(5,5,2,0.25,3);
INSERT INTO "failure" VALUES(6,1,1,0.25,1);
INSERT INTO "failure" VALUES(6,2,1,0.25,1);
CREATE TABLE hud_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT hud_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "hud_version" VALUES('0001');
CREATE TABLE interval (
	test_id INTEGER NOT NULL, 
	lane_id INTEGER NOT NULL, 
	first_run INTEGER NOT NULL, 
	until_run INTEGER, 
	outcome SMALLINT NOT NULL, 
	CONSTRAINT pk_interval PRIMARY KEY (test_id, lane_id, first_run)
)
 WITHOUT ROWID

;
INSERT INTO "interval" VALUES(1,1,1,2,0);
INSERT INTO "interval" VALUES(1,1,2,NULL,1);
INSERT INTO "interval" VALUES(2,1,1,3,1);
INSERT INTO "interval" VALUES(2,1,3,5,0);
INSERT INTO "interval" VALUES(2,1,5,NULL,10);
INSERT INTO "interval" VALUES(3,1,1,3,0);
INSERT INTO "interval" VALUES(3,1,3,4,4);
INSERT INTO "interval" VALUES(3,1,4,NULL,1);
INSERT INTO "interval" VALUES(4,1,1,2,0);
INSERT INTO "interval" VALUES(4,1,2,3,3);
INSERT INTO "interval" VALUES(4,1,4,NULL,0);
INSERT INTO "interval" VALUES(5,1,3,4,0);
INSERT INTO "interval" VALUES(5,1,5,NULL,2);
CREATE TABLE lane (
	id INTEGER NOT NULL, 
	backend_id INTEGER NOT NULL, 
	digest BLOB NOT NULL, 
	workflow TEXT NOT NULL, 
	job TEXT NOT NULL, 
	CONSTRAINT pk_lane PRIMARY KEY (id), 
	CONSTRAINT fk_lane_backend_id FOREIGN KEY(backend_id) REFERENCES backend (id), 
	CONSTRAINT uq_lane_backend_id_digest UNIQUE (backend_id, digest)
);
INSERT INTO "lane" VALUES(1,1,X'1672B0B93838A052E935399019492615','CI','job');
CREATE TABLE pull_head (
	id INTEGER NOT NULL, 
	upstream TEXT NOT NULL, 
	pr INTEGER NOT NULL, 
	sha TEXT NOT NULL, 
	base_sha TEXT, 
	base_ref TEXT, 
	title TEXT NOT NULL, 
	author TEXT NOT NULL, 
	state TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	CONSTRAINT pk_pull_head PRIMARY KEY (id), 
	CONSTRAINT uq_pull_head_upstream_pr_sha UNIQUE (upstream, pr, sha)
);
INSERT INTO "pull_head" VALUES(1,'pytorch/pytorch',7,'cccccccccccccccccccccccccccccccccccccccc','5555555555555555555555555555555555555555','main','Change things','contributor','open',1700000000.0,1790345600.0);
CREATE TABLE refusal (
	id INTEGER NOT NULL, 
	repo TEXT, 
	status INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_refusal PRIMARY KEY (id)
);
CREATE TABLE run (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	backend_id INTEGER NOT NULL, 
	lane_id INTEGER, 
	delivery_id TEXT NOT NULL, 
	event TEXT, 
	action TEXT, 
	upstream TEXT, 
	pr INTEGER, 
	sha TEXT, 
	base_sha TEXT, 
	branch TEXT, 
	run_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	level TEXT NOT NULL, 
	status TEXT NOT NULL, 
	conclusion TEXT, 
	report JSON, 
	queue_time DOUBLE, 
	execution_time DOUBLE, 
	first_seen DOUBLE NOT NULL, 
	updated DOUBLE NOT NULL, 
	revision INTEGER NOT NULL, 
	results TEXT NOT NULL, 
	totals JSON, 
	cuts JSON, 
	parts JSON, 
	order_at DOUBLE, 
	order_place INTEGER NOT NULL, 
	in_history BOOLEAN NOT NULL, 
	CONSTRAINT pk_run PRIMARY KEY (id), 
	CONSTRAINT fk_run_backend_id FOREIGN KEY(backend_id) REFERENCES backend (id), 
	CONSTRAINT fk_run_lane_id FOREIGN KEY(lane_id) REFERENCES lane (id), 
	CONSTRAINT uq_run_key UNIQUE ("key")
);
INSERT INTO "run" VALUES(1,'501323b3df2a3f953f20e32f2c3f932f',1,1,'push 1','push',NULL,'pytorch/pytorch',NULL,'1111111111111111111111111111111111111111',NULL,'main','1',1,'L2','completed','failure','{"schema_version": 1, "status": "completed", "name": "CI", "run_id": "1", "run_attempt": 1, "job_name": "job", "conclusion": "failure", "url": "https://example.org/log", "test_results": {"passed": 3, "failed": 1, "skipped": 0}}',12.5,60.0,1790000000.0,1790000000.0,4,'pruned','{"passed": 3, "failed": 1, "error": 0, "skipped": 0, "xfailed": 0, "xpassed": 0, "not_applicable": 0, "deselected": 0, "crashed": 0, "timed_out": 0, "flaky": 0}','{}','[1]',1700000000.0,0,0);
INSERT INTO "run" VALUES(2,'83035dae602f73effc786e87df0d6bc4',1,1,'push 2','push',NULL,'pytorch/pytorch',NULL,'2222222222222222222222222222222222222222',NULL,'main','2',1,'L2','completed','failure','{"schema_version": 1, "status": "completed", "name": "CI", "run_id": "2", "run_attempt": 1, "job_name": "job", "conclusion": "failure", "url": "https://example.org/log", "test_results": {"passed": 3, "failed": 1, "skipped": 0}}',12.5,60.0,1790086400.0,1790086400.0,3,'complete','{"passed": 1, "failed": 2, "error": 0, "skipped": 1, "xfailed": 0, "xpassed": 0, "not_applicable": 0, "deselected": 0, "crashed": 0, "timed_out": 0, "flaky": 0}','{}','[1]',1700001000.0,1,1);
INSERT INTO "run" VALUES(3,'5820cf2f8916c94d3f35dda51e9fc99e',1,1,'push 3','push',NULL,'pytorch/pytorch',NULL,'3333333333333333333333333333333333333333',NULL,'main','3',1,'L2','completed','failure','{"schema_version": 1, "status": "completed", "name": "CI", "run_id": "3", "run_attempt": 1, "job_name": "job", "conclusion": "failure", "url": "https://example.org/log", "test_results": {"passed": 3, "failed": 1, "skipped": 0}}',12.5,60.0,1790172800.0,1790172800.0,3,'complete','{"passed": 2, "failed": 1, "error": 0, "skipped": 0, "xfailed": 1, "xpassed": 0, "not_applicable": 0, "deselected": 0, "crashed": 0, "timed_out": 0, "flaky": 0}','{}','[1]',1700002000.0,1,1);
INSERT INTO "run" VALUES(4,'16b2f292903db2c1821f893590beaf1f',1,1,'push 4','push',NULL,'pytorch/pytorch',NULL,'4444444444444444444444444444444444444444',NULL,'main','4',1,'L2','completed','failure','{"schema_version": 1, "status": "completed", "name": "CI", "run_id": "4", "run_attempt": 1, "job_name": "job", "conclusion": "failure", "url": "https://example.org/log", "test_results": {"passed": 3, "failed": 1, "skipped": 0}}',12.5,60.0,1790259200.0,1790259200.0,3,'complete','{"passed": 2, "failed": 2, "error": 0, "skipped": 0, "xfailed": 0, "xpassed": 0, "not_applicable": 0, "deselected": 0, "crashed": 0, "timed_out": 0, "flaky": 0}','{}','[1]',1700003000.0,1,1);
INSERT INTO "run" VALUES(5,'eded746068cb0a1aee75d2112e8ec6fd',1,1,'push 5','push',NULL,'pytorch/pytorch',NULL,'5555555555555555555555555555555555555555',NULL,'main','5',1,'L2','completed','failure','{"schema_version": 1, "status": "completed", "name": "CI", "run_id": "5", "run_attempt": 1, "job_name": "job", "conclusion": "failure", "url": "https://example.org/log", "test_results": {"passed": 3, "failed": 1, "skipped": 0}}',12.5,60.0,1790345600.0,1790345600.0,3,'complete','{"passed": 1, "failed": 2, "error": 1, "skipped": 0, "xfailed": 0, "xpassed": 0, "not_applicable": 0, "deselected": 0, "crashed": 0, "timed_out": 0, "flaky": 1}','{}','[1]',1700004000.0,1,1);
INSERT INTO "run" VALUES(6,'732d8d747f7bb4e51e6ebcd144b21147',1,1,'d1','pull_request','synchronize','pytorch/pytorch',7,'cccccccccccccccccccccccccccccccccccccccc','5555555555555555555555555555555555555555',NULL,'9',1,'L2','completed','failure','{"schema_version": 1, "status": "completed", "name": "CI", "run_id": "9", "run_attempt": 1, "job_name": "job", "conclusion": "failure"}',12.5,60.0,1790345600.0,1790345600.0,3,'complete','{"passed": 1, "failed": 2, "error": 0, "skipped": 0, "xfailed": 0, "xpassed": 0, "not_applicable": 0, "deselected": 0, "crashed": 0, "timed_out": 0, "flaky": 0}','{}','[1]',1700000000.0,0,0);
CREATE TABLE snapshot (
	run_id INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_snapshot PRIMARY KEY (run_id), 
	CONSTRAINT fk_snapshot_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "snapshot" VALUES(2,X'34000000789CAB56CA53B25230D15150CACB2F492D06B2A3A395F20B8AF52A137373AC8C9520120A95A92520A6B2A9526C6C2D0089B60EDB0E000000789C636460606044C200003800050C000000789C636464600600000E00060D000000789C63600001460600000A00020C000000789C4B4C4C4C040003CE0185');
INSERT INTO "snapshot" VALUES(3,X'34000000789CAB56CA53B25230D15150CACB2F492D06B2A3A395F20B8AF52A137373AC8C9520120A95A92520A6B2A9526C6C2D0089B60EDB11000000789C6364606060846226200600003C00060C000000789C636460610000001000060E000000789C6360606060046200000C00020C000000789C4B4C4C4C040003CE0185');
INSERT INTO "snapshot" VALUES(4,X'1B000000789CAB56CA53B25230D15150CACB2F492D06B2A3636B013E0F06040E000000789C636460606044C200003800050C000000789C636460640000000A00030B000000789C6360800000000800010C000000789C4B4C4C4C040003CE0185');
INSERT INTO "snapshot" VALUES(5,X'1B000000789CAB56CA53B25230D55150CACB2F492D06B2A3636B013E1E06050E000000789C636460606044C300005000060D000000789C63E462646002000037000F0B000000789C6360800100000A00010B000000789C4B4C04020005B401E6');
INSERT INTO "snapshot" VALUES(6,X'1B000000789CAB56CA53B25230D65150CACB2F492D06B2A3636B013E0006030E000000789C6364606060846200002400040B000000789C6364640000000800030B000000789C6360000100000600010B000000789C4B4C4C040002490124');
CREATE TABLE test (
	id INTEGER NOT NULL, 
	digest BLOB NOT NULL, 
	name TEXT NOT NULL, 
	file TEXT NOT NULL, 
	cls TEXT NOT NULL, 
	test TEXT NOT NULL, 
	op TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	CONSTRAINT pk_test PRIMARY KEY (id), 
	CONSTRAINT uq_test_digest UNIQUE (digest)
);
INSERT INTO "test" VALUES(1,X'6C30A516787AA50E70C05D535B9B8113','test_ops.py::TestOps::test_a@','test_ops.py','TestOps','test_a','a','');
INSERT INTO "test" VALUES(2,X'93AABE7C1B0B5984451B9B54966101EA','test_ops.py::TestOps::test_b@','test_ops.py','TestOps','test_b','b','');
INSERT INTO "test" VALUES(3,X'D48CAB9375459978A69591BAD9D61ACA','test_ops.py::TestOps::test_c@','test_ops.py','TestOps','test_c','c','');
INSERT INTO "test" VALUES(4,X'3D97AAC5D1B7523C2D775BE2F9355319','test_ops.py::TestOps::test_gone@','test_ops.py','TestOps','test_gone','gone','');
INSERT INTO "test" VALUES(5,X'FCFB4FF09CCB03A1EE068DF57A5BDBB8','test_ops.py::TestOps::test_back@','test_ops.py','TestOps','test_back','back','');
CREATE INDEX ix_branch_commit_order ON branch_commit (upstream, branch, at, place);
CREATE INDEX ix_branch_commit_sha ON branch_commit (sha);
CREATE INDEX ix_interval_first_run ON interval (first_run);
CREATE INDEX ix_pull_head_at ON pull_head (at);
CREATE INDEX ix_run_backend ON run (backend_id, first_seen);
CREATE INDEX ix_run_first_seen ON run (first_seen);
CREATE INDEX ix_run_lane ON run (lane_id, first_seen);
CREATE INDEX ix_run_pr ON run (pr, upstream);
CREATE INDEX ix_run_sha ON run (sha);
CREATE INDEX ix_failure_detail ON failure (detail_id);
CREATE INDEX ix_failure_test ON failure (test_id, run_id);
COMMIT;
