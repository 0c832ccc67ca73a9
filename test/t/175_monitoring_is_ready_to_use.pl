# What examples/monitoring has: every query of the exporter and of the
# dashboard runs, on a primary and on a standby, for a role that is a member of
# pg_monitor and nothing else; and each alert is raised by what it is there
# for, and by nothing else.  Those on feedpub-http and feedpub-relay have tests in
# test/http and test/relay.

use strict;
use warnings FATAL => 'all';

use CPAN::Meta::YAML;
use FindBin;
use JSON::PP;
use lib "$FindBin::RealBin/../perl";
use FeedpubAlerts;
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my $dir = "$root/examples/monitoring";
my $queries = CPAN::Meta::YAML->read("$dir/postgres_exporter.yaml")->[0];
my @alerts = alerts('feedpub');
my $dashboard = decode_json(slurp_file("$dir/dashboard.json"));
my $operations = slurp_file("$root/docs/operations.md");

my $node = feedpub_node(
	'primary',
	allows_streaming => 1,
	conf => "shared_preload_libraries = 'feedpub'\nfeedpub.publish_interval = 0\nfeedpub.naptime = 100ms");
my %monitor = (user => 'regress_feedpub_monitor');

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_monitor LOGIN IN ROLE pg_monitor;
SELECT feed_create('"Odd ""Name"", with a comma"'), feed_create('"never written"');
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
SELECT feed_subscribe('mail', 'kv');
INSERT INTO kv SELECT i::text, '' FROM generate_series(1, 100) i;
DELETE FROM kv WHERE k < '5';
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'A', '1' FROM generate_series(1, 100);
SQL
ok($node->poll_query_until('postgres',
		'SELECT count(*) = 2 FROM feedpub.feeds WHERE head > 0 AND NOT unpublished'),
	'two of three feeds are published');
sql($node, q(SELECT feed_seek('mail', 'latest')));

# The rows of a query, as the monitoring role sees them.
sub rows
{
	my ($server, $query, %options) = @_;
	my $out = sql($server, "SELECT row_to_json(q) FROM ($query) q", %options);

	return map { decode_json($_) } split /\n/, $out;
}

# What the exporter makes of its queries: for each metric a value for each set
# of labels.
sub scrape
{
	my ($server) = @_;
	my %metrics;

	for my $name (sort keys %$queries)
	{
		my @columns = map { [ %$_ ] } @{ $queries->{$name}{metrics} };

		for my $row (rows($server, $queries->{$name}{query}, %monitor))
		{
			my %labels = map { $_->[0] => $row->{ $_->[0] } }
			  grep { $_->[1]{usage} eq 'LABEL' } @columns;
			my $labels = join ',', map { "$_=$labels{$_}" } sort keys %labels;

			$metrics{"${name}_$_->[0]"}{$labels} = $row->{ $_->[0] }
			  for grep { $_->[1]{usage} ne 'LABEL' } @columns;
		}
	}
	return \%metrics;
}

sub is_raised { return await_raised(sub { scrape($node) }, {}, \@alerts, @_) }

#
# The exporter's queries
#
for my $name (sort keys %$queries)
{
	my @rows = rows($node, $queries->{$name}{query}, %monitor);
	my @columns = map { keys %$_ } @{ $queries->{$name}{metrics} };
	my @named = grep {
		my ($m) = values %$_;
		$m->{usage} =~ /^(LABEL|GAUGE|COUNTER)$/ && $m->{description} ne ''
	} @{ $queries->{$name}{metrics} };

	cmp_ok(@rows, '>', 0, "$name: its query runs and returns rows");
	is(join(' ', sort @columns), join(' ', sort keys %{ $rows[0] }),
		'each column of it is a metric or a label');
	is(@named, @columns, 'with a usage and a description');
}
my $metrics = scrape($node);
is(keys %{ $metrics->{feedpub_feed_ready} }, 3, 'all feeds are seen');
is(keys %{ $metrics->{feedpub_subscription_parked} },
	1, 'and all subscriptions');
is(scalar(grep { !defined } map { values %{ $metrics->{$_} } } keys %$metrics),
	0, 'and no figure is hidden');

#
# The dashboard
#
my @panels = @{ $dashboard->{panels} };
my %ids = map { $_->{id} => 1 } @panels;

cmp_ok(@panels, '>', 5, 'the dashboard has panels');
is(keys %ids, @panels, 'with different numbers');
is($dashboard->{templating}{list}[0]{name},
	'datasource', 'the database is chosen by a variable');
for my $panel (@panels)
{
	for my $target (@{ $panel->{targets} })
	{
		my @rows = rows($node, $target->{rawSql}, %monitor);

		is($target->{datasource}{uid},
			'${datasource}', "$panel->{title}: asks that database");
		unlike($target->{rawSql}, qr/\$/, 'without a macro of the dashboard');
		cmp_ok(@rows, '>', 0, 'and has an answer')
		  if $panel->{title} !~ /held back|holds xid order|published again/;
		next if $panel->{type} ne 'stat';
		# where no column is named, Grafana shows numbers only
		my ($column) = keys %{ $rows[0] };

		is( $panel->{options}{reduceOptions}{fields},
			encode_json([ $rows[0]{$column} ]) =~ /^\["/ ? "/^$column\$/" : '',
			'which is shown');
	}
	for my $override (@{ $panel->{fieldConfig}{overrides} // [] })
	{
		like($panel->{targets}[0]{rawSql},
			qr/\b$override->{matcher}{options}\b/,
			"$panel->{title}: column $override->{matcher}{options} is there");
	}
}
my %programs = %{ decode_json(slurp_file("$dir/programs.json")) };
my @asked = map { map { $_->{expr} } @{ $_->{targets} } } @{ $programs{panels} };
is(join("\n", grep { !/feedpub-(?:http|relay)|feedpub_(?:http|relay)_/ } @asked), '', 'that of the programs asks for metrics of theirs');

#
# The alerts
#
for my $alert (@alerts)
{
	for my $metric ($alert->{expr} =~ /\b(feedpub_\w+)/g)
	{
		ok(exists $metrics->{$metric},
			"$alert->{alert}: the exporter has $metric");
	}
}
is(join(' ', $operations =~ /^### (Feedpub\w+)$/mg),
	join(' ', map { $_->{alert} } @alerts, alerts('feedpub-programs')), 'what to do is in docs/operations.md, which has no others');

is_raised('', 'all is well: no alert');

sql($node, 'SELECT feed_stop_worker()');
is_raised('FeedpubWorkerMissing', 'without a worker');
sql($node, q(INSERT INTO kv VALUES ('not', 'published')));
is_raised("FeedpubWorkerMissing\nFeedpubNotPublished kv",
	'which leaves rows unpublished');
sql($node, 'SELECT feed_start_worker()');
is_raised('FeedpubSubscriptionLag mail',
	'it is back, and nobody reads what it has published');
sql($node,
	q(SELECT feed_ack('mail', max(receipt)) FROM feed_poll('mail', 100)));
is_raised('', 'somebody has');

sql($node, 'ALTER SEQUENCE kv_feed_pos_seq SET UNLOGGED');
is_raised('FeedpubNotReady kv', 'a feed without its guard');
sql($node, q(SELECT feed_repair('kv')));
is_raised('', 'repaired');

my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE kv IN ACCESS EXCLUSIVE MODE');
is_raised("FeedpubNotReady kv\nFeedpubHeldBack",
	'a feed that somebody has locked, in a transaction with an xid');
$locker->query_safe('COMMIT');
is_raised('', 'unlocked');

$locker->query_safe('BEGIN; CREATE TABLE elsewhere (i int)');
is_raised('FeedpubHeldBack', 'a transaction that goes on and on');
for my $panel (grep { $_->{title} =~ /holds xid order/ } @panels)
{
	is( scalar(rows($node, $panel->{targets}[0]{rawSql}, %monitor)),
		1, "$panel->{title}: that one");
}
$locker->query_safe('ROLLBACK');
$locker->quit;
is_raised('', 'over');

# A feed whose batches cannot be written, while the worker is there
my $holder = hold_publisher($node);
sql($node, q(INSERT INTO kv VALUES ('held', 'back')));
is_raised('FeedpubNotPublished kv', 'a worker that does not get on');
$holder->quit;
is_raised('FeedpubSubscriptionLag mail', 'it does');
sql($node, q(SELECT feed_seek('mail', 'latest')));
is_raised('', 'and it is read');

#
# Retention: a subscription that lags, rows that cannot be removed, and a
# subscription that has expired
#
sql($node, q(SELECT feed_subscribe('slow', '"Odd ""Name"", with a comma"', 'earliest')));
sql($node, q(SELECT feed_retain('"Odd ""Name"", with a comma"', '1 s')));
is_raised('FeedpubSubscriptionLag slow', 'a subscription that lags');
sql($node, q(UPDATE feedpub._batch SET published_at = published_at - interval '61 min'));
my $retention = q(FeedpubRetentionHeldBack "Odd ""Name"");
is_raised("FeedpubSubscriptionLag slow\n$retention", 'and holds back retention for an hour');
sql($node, q(CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
	CREATE TRIGGER forbid BEFORE DELETE ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION forbid()));
sql($node, q(SELECT feed_retain('"Odd ""Name"", with a comma"', '1 s', '1 min')));
is_raised("FeedpubSubscriptionLag slow\nFeedpubSubscriptionExpired slow\n$retention", 'it has expired, and rows cannot be removed');
sql($node, q(SELECT feed_seek('slow', 'earliest')));
is_raised($retention, 'it begins again');
sql($node, q(DROP TRIGGER forbid ON "Odd ""Name"", with a comma"));
is_raised('', 'the rows are gone');

#
# A parked entry, until somebody decides about it
#
sql($node, q(INSERT INTO kv VALUES ('poison', ''), ('fine', '')));
is_raised('FeedpubSubscriptionLag mail', 'an entry that its consumer cannot take');
sql($node, q(SELECT feed_park('mail', receipt) FROM feed_poll('mail', 1)));
sql($node, q(SELECT feed_ack('mail', receipt) FROM feed_poll('mail', 1)));
is_raised('FeedpubParked mail', 'is parked');
sql($node, q(SELECT feed_discard('mail', cursor) FROM feedpub.parked));
is_raised('', 'and discarded');

#
# The exporter asks each database, and needs feedpub in none but those with feeds.
#
is(scalar(grep { $queries->{$_}{master} } keys %$queries), 0, 'no query is for the first database only');
is(scalar(grep { !grep { exists $_->{datname} } @{ $queries->{$_}{metrics} } } keys %$queries), 0,
	'and the database is a label of each');

#
# On a standby
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_replay_catchup($standby);
$metrics = scrape($standby);
is(keys %{ $metrics->{feedpub_feed_ready} }, 3, 'a standby has all feeds');
is(raised($metrics, {}, @alerts), '', 'and no alert, though it publishes nothing');
for my $panel (@panels)
{
	rows($standby, $_->{rawSql}, %monitor) for @{ $panel->{targets} };
	pass("standby: $panel->{title} has an answer");
}
$standby->stop;
$node->stop;
done_testing();
