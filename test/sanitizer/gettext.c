/*
 * gettext.c: messages as they are, for a server under a preloaded libasan.
 *
 * Debian's server hangs in bindtextdomain() there.  Preloaded too, this is what
 * it calls instead of the C library's.
 */
#include <stddef.h>

char *gettext(const char *id);
char *dgettext(const char *domain, const char *id);
char *dcgettext(const char *domain, const char *id, int category);
char *ngettext(const char *one, const char *many, unsigned long n);
char *dngettext(const char *domain, const char *one, const char *many,
				unsigned long n);
char *dcngettext(const char *domain, const char *one, const char *many,
				 unsigned long n, int category);
char *textdomain(const char *domain);
char *bindtextdomain(const char *domain, const char *directory);
char *bind_textdomain_codeset(const char *domain, const char *codeset);

char *
gettext(const char *id)
{
	return (char *) id;
}

char *
dgettext(const char *domain, const char *id)
{
	return (char *) id;
}

char *
dcgettext(const char *domain, const char *id, int category)
{
	return (char *) id;
}

char *
ngettext(const char *one, const char *many, unsigned long n)
{
	return (char *) (n == 1 ? one : many);
}

char *
dngettext(const char *domain, const char *one, const char *many,
		  unsigned long n)
{
	return (char *) (n == 1 ? one : many);
}

char *
dcngettext(const char *domain, const char *one, const char *many,
		   unsigned long n, int category)
{
	return (char *) (n == 1 ? one : many);
}

char *
textdomain(const char *domain)
{
	return (char *) domain;
}

char *
bindtextdomain(const char *domain, const char *directory)
{
	return (char *) directory;
}

char *
bind_textdomain_codeset(const char *domain, const char *codeset)
{
	return (char *) codeset;
}
