# A feed with much traffic is published once an interval, so that each batch has
# several commits; a quiet one at once, whatever the busy one does.  The interval
# is long here, so what waits for it stays unpublished to the end of the test.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => <<'CONF');
feedpub.publish_interval = 60s
feedpub.naptime = 100ms
CONF

sql($node, q(SELECT feed_create('busy'), feed_create('quiet')));
sql($node, 'SELECT feed_start_worker()');
await_worker($node);

sub insert
{
	my ($feed) = @_;

	return sql($node, "INSERT INTO $feed (message_type, data) VALUES ('A', '1')");
}

sub published
{
	my ($feed) = @_;

	return sql($node,
		"SELECT string_agg(transactions::text, ' ' ORDER BY sync_id) FROM feedpub._batch WHERE feed = '$feed'::regclass"
	);
}

# Eight commits in one batch: their owner keeps the feed from being published
# meanwhile.
sub insert_together
{
	my $owner = $node->background_psql('postgres', on_error_stop => 1);

	$owner->query_safe(q(BEGIN; SELECT feed_set_channel('busy', 'news')));
	insert('busy') for 1 .. 8;
	$owner->query_safe('COMMIT');
	$owner->quit;
	ok(await_published($node, 'busy'), 'published at once');
	return;
}

# A commit takes up an eighth of an interval.
insert_together();
is(published('busy'), '8', 'an interval is taken up by eight commits');
insert_together();
is(published('busy'), '8 8', 'which are published at once, and so is what comes then');

# The busy feed is due in an interval, and its mark is there before the other's.
insert('busy');
insert('quiet');
ok(await_published($node, 'quiet'), 'a quiet feed is published beside it');
my $turns = sql($node, 'SELECT turns FROM feedpub.workers');
ok($node->poll_query_until('postgres', "SELECT turns > $turns + 2 FROM feedpub.workers"),
	'the worker has looked around');
is(published('busy'), '8 8', 'the next commit of the busy feed waits for its interval');
is(published('quiet'), '1', 'and is not taken for news of the other');

# Up to a whole interval a quiet feed does not wait.
for my $n (2 .. 9)
{
	insert('quiet');
	ok(await_published($node, 'quiet'), "commit $n of the quiet feed");
}
is(published('quiet'), '1 1 1 1 1 1 1 1 1', 'each by itself');
is(published('busy'), '8 8', 'the busy one still waits');

done_testing();
