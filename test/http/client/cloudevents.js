// Reads a batch of CloudEvents from stdin, and has the package "cloudevents"
// validate each, as they come in a response.  Prints how many there were.
const { CloudEvent, HTTP } = require('cloudevents');
const body = require('fs').readFileSync(0, 'utf8');
const batch = JSON.parse(body);
const headers = { 'content-type': 'application/cloudevents-batch+json; charset=UTF-8' };
const events = HTTP.toEvent({ headers, body });

if (events.length !== batch.length)
	throw new Error(`${events.length} events of ${batch.length}`);
batch.forEach((event, i) => {
	new CloudEvent(event, true).validate();
	events[i].validate();
	if (events[i].id !== event.id || events[i].subject !== event.subject ||
		JSON.stringify(events[i].data) !== JSON.stringify(event.data))
		throw new Error(`another event: ${JSON.stringify(events[i])}`);
});
console.log(events.length);
