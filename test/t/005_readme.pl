# The README's statements can be pasted into psql, from the first to the last:
# none fails, none blocks, and they show what the README says.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A machine that is busy with other tests publishes later.
my $node = feedpub_node('server', extension => 0, conf => q(feedpub.read_wait = '30 s'));
my $readme = slurp_file("$FindBin::RealBin/../../README.md");
my @blocks = $readme =~ /^```sql\n(.*?)^```$/msg;

cmp_ok(scalar @blocks, '>=', 3, 'there are statements to paste');
# After the first minute, in which the worker starts, reads wait for nothing: what
# is to be seen has been waited for.
my ($status, $out, $err) = $node->psql('postgres', join('', $blocks[0], "SET feedpub.read_wait = 0;\n", @blocks[ 1 .. $#blocks ]),
	on_error_stop => 1, extra_params => [ '-A', '-t' ]);
is($status, 0, 'none of them fails');
is($err, '', 'nor has anything to say');
like($out, qr/"message_type":"OrderPlaced"/, 'a page as JSON');
like($out, qr/\|upsert\|[^\n]*\|OrderPlaced\|/, 'and as rows');
like($out, qr/"entries": *\[\]/, 'after the end there are no entries');
like($out, qr/^upsert\|first\|there before\|/m, 'a row that was there');
like($out, qr/^upsert\|first\|jim\|/m, 'its new version');
like($out, qr/^delete\|first\|\|/m, 'its delete');
like($out, qr/^insert\|public\.kv\|.*\nupdate\|public\.kv\|.*\|t$/m, 'changes of a change feed, to a moment');
like($out, qr/^\S+\nt$/m, 'a subscription, and an acknowledgement');
$node->stop;
done_testing();
