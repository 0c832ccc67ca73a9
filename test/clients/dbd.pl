# dbd.pl prepared|unprepared [feature]: what works in Perl's DBD::Pg.  See node.mjs.
use strict;
use warnings;

use B ();
use DBI;
use DBD::Pg qw(:async);

my $prepared = $ARGV[0] eq 'prepared';
my %setting = $prepared ? () : (pg_server_prepare => 0);
my ($first, $second) =
  map { DBI->connect('dbi:Pg:', '', '', { PrintError => 0, RaiseError => 1, %setting }) } 1, 2;

sub report
{
	my ($feature, $check) = @_;
	return if $feature ne ($ARGV[1] // $feature);
	my $result = eval { $check->() } // 'works';

	if (my $error = $@)
	{
		$result = 'no: ' . (ref $error ? "@$error" : $DBI::state || $error) =~ s/\n.*//sr;
		$first->rollback if !$first->{AutoCommit};
	}
	print "$feature: $result\n";
	return;
}

sub expect
{
	my ($got, $wanted) = @_;

	die ["$got in place of $wanted"] if $got ne $wanted;
	return;
}

sub altered
{
	my ($column, $ddl, $entry) = (@_, '(entry).*');
	my $prepare = sub { $first->prepare("SELECT $entry FROM feed_read(NULL::outbox, ?, ?)") };
	my $kept = $prepare->();
	my $has = sub {
		my $sth = $prepared ? $kept : $prepare->();

		$sth->execute('', 10);
		my $row = $sth->fetchall_arrayref({})->[0];
		return exists $row->{$column} || ($row->{entry} // '') =~ /"$column"/;
	};

	$has->() for 1 .. 6;
	$second->do($ddl);
	die ['missing'] if !$has->();
	return;
}

# Begins to wait, does something, and returns the statement.
sub waiting
{
	my ($then) = @_;
	my $sth = $first->prepare('SELECT feed_wait(?::regclass, feed_head(?::regclass), ?::interval)',
		{ pg_async => PG_ASYNC });

	$sth->execute('outbox', 'outbox', '1 min');
	1 while !$sth->pg_ready && !$second->selectrow_array(<<'SQL');
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'
AND query LIKE '%feed_wait%' AND pid <> pg_backend_pid()
SQL
	$then->($sth);
	return $sth;
}

print "setting: `pg_server_prepare => $first->{pg_server_prepare}`", $prepared ? '' : ', no kept handle', "\n";
report('page', sub {
	my ($cursor, $rows, @keys) = ('');
	do
	{
		$rows = $first->selectall_arrayref(
			'SELECT cursor, (entry).message_key FROM feed_read(NULL::outbox, ?, ?)', undef, $cursor, 2);
		push @keys, map { $_->[1] } @$rows;
		$cursor = $rows->[-1][0] if @$rows;
	} while (@$rows);
	expect("@keys", '1 2 3 4 5');
	expect($first->selectrow_array("SELECT json_array_length(feed_page(?::regclass, ?, ?) -> 'entries')",
			undef, 'outbox', $cursor, 2), 0);
	return;
});
report('uncast', sub {
	expect($first->selectrow_array('SELECT feed_wait(?, ?, ?)', undef, 'outbox', '', '0 s'), 1);
	expect(scalar @{ $first->selectall_arrayref('SELECT * FROM feed_fetch(NULL::outbox, ?, ?, ?)', undef, '0', 0, 2) }, 2);
	return;
});
my $anew = 'ALTER FUNCTION feed_read(anyelement, text, integer, integer, integer, text[]) COST 1000';
report('add', sub { altered('one', 'ALTER TABLE outbox ADD COLUMN one int') });
report('replan', sub { altered('two', "ALTER TABLE outbox ADD COLUMN two int; $anew") });
report('retype', sub { altered('two', 'ALTER TABLE outbox ALTER COLUMN two TYPE bigint') });
report('to_jsonb', sub { altered('three', 'ALTER TABLE outbox ADD COLUMN three int', 'to_jsonb(entry) AS entry') });
report('call', sub {
	expect($first->selectrow_array('CALL feed_await(?::regclass, ?, ?::interval)', undef, 'outbox', '', '1 min'), 1);
	return;
});
report('declare', sub {
	my ($rows, @keys);
	$first->begin_work;
	$first->do("DECLARE c CURSOR FOR SELECT message_key FROM feed_fetch(NULL::outbox, '0', 0, 100)");
	do
	{
		$rows = $first->selectcol_arrayref('FETCH 2 FROM c');
		push @keys, @$rows;
	} while (@$rows);
	$first->commit;
	expect("@keys", '1 2 3 4 5');
	return;
});
my ($xid, $pos, $scheduled) = $first->selectrow_array(
	"SELECT feed_xid, feed_pos, scheduled FROM feed_fetch(NULL::outbox, '0', 0, 1)");
my ($entry, $json) = $first->selectrow_array(
	"SELECT entry, feed_page('outbox', '', 1) FROM feed_read(NULL::outbox, '', 1)");
sub type { return ref $_[0] || (B::svref_2object(\$_[0])->FLAGS & B::SVf_POK ? 'string' : 'number') }
report('xid8', sub { type($xid) });
report('bigint', sub { type($pos) });
report('timestamptz', sub { type($scheduled) });
report('json', sub { type($json) });
report('entry', sub { type($entry) });
report('digits', sub { $json =~ /"n": 9007199254740993\b/ ? undef : 'no: rounded' });
report('ack', sub {
	my $receipt;
	for my $end ('rollback', 'commit')
	{
		$first->begin_work;
		my $page = $first->selectall_arrayref(
			"SELECT receipt, key ->> 'message_key' FROM feed_poll(?, ?)", undef, 'mail', 2);
		$first->do('INSERT INTO effect VALUES (?)', undef, $_->[1]) for @$page;
		$receipt = $page->[-1][0];
		expect($first->selectrow_array('SELECT feed_ack(?, ?)', undef, 'mail', $receipt), 1);
		$first->$end;
	}
	expect("@{ $first->selectcol_arrayref('SELECT key FROM effect ORDER BY key') }", '1 2');
	eval { $first->do('SELECT feed_ack(?, ?)', undef, 'mail', $receipt) };
	expect($first->state, 'PF005');
	return;
});
report('wait', sub {
	my $sth = waiting(sub { $second->do("INSERT INTO outbox (message_type, data) VALUES ('News', '6')") });
	$sth->pg_result;
	expect($sth->fetchrow_array, 1);
	return;
});
report('cancel', sub {
	waiting(sub { expect($_[0]->pg_cancel, 1) });
	expect($first->selectrow_array('SELECT 1'), 1);
	return;
});
report('session', sub {
	my $sth = $first->prepare('SELECT feed_page(?::regclass)');
	$second->begin_work;
	$second->do('SELECT 1');
	$sth->execute('outbox') for 1 .. 6;
	$second->commit;
	$first->begin_work;
	$sth->execute('outbox');
	$first->commit;
	return;
});
$_->disconnect for $first, $second;
