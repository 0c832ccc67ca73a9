/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of a program, from flags, the environment and a file.
 *
 * A flag comes before the environment, the environment before the file, and
 * the file before the default.  On SIGHUP the file is read again; settings
 * that are marked so take effect then.  A program may let its file have
 * sections, each begun by a line "[name]", and takes their lines itself.
 *
 * A reload frees the settings before it.  That is safe, since the process has
 * one thread, and the signal is taken by its loop: when that runs, no function
 * that uses a setting has begun and not ended.  So nothing keeps a pointer to a
 * setting for longer than that: it keeps a copy.
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **values_of_flags;
static char *file_name;

static void print_help(const BaseSettings *settings);
static const BaseSetting *find_setting(const BaseSettings *settings,
									   const char *name, size_t length);
static bool set_from_file(const BaseSettings *settings, char **values, void *made);
static bool is_section(char *line, char **section);
static void print_variable(BaseText *name, const BaseSettings *settings,
						   const BaseSetting *setting);
static void *make_settings(const BaseSettings *settings);
static void free_settings(const BaseSettings *settings, void *old);

static void
print_help(const BaseSettings *settings)
{
	printf("%s\n\nUsage: " FEEDPUB_PROGRAM " [OPTION]...\n\n", settings->summary);
	for (size_t i = 0; i < settings->count; i++)
	{
		const BaseSetting *s = &settings->list[i];

		printf(s->unit != NULL ? "  --%s=%s\n" : "  --%s\n", s->name, s->unit);
		if (s->unit == NULL)
		{
			printf("      %s\n", s->help);
			continue;
		}
		printf("      %s", s->help);
		printf(*s->preset ? " (%s)\n" : "\n", s->preset);
	}
	printf("  --config=FILE\n"
		   "      lines \"name = value\", read again on SIGHUP\n"
		   "  --help, --version\n\n%s\n",
		   settings->notes);
}

/* The setting with this name, or NULL. */
static const BaseSetting *
find_setting(const BaseSettings *settings, const char *name, size_t length)
{
	for (size_t i = 0; i < settings->count; i++)
		if (strlen(settings->list[i].name) == length &&
			strncmp(settings->list[i].name, name, length) == 0)
			return &settings->list[i];
	return NULL;
}

/* Read the file; a value that is there already stays. */
static bool
set_from_file(const BaseSettings *settings, char **values, void *made)
{
	char		line[4096];
	char	   *section = NULL;
	int			number = 0;
	bool		good = true;
	FILE	   *file = fopen(file_name, "r");

	if (file == NULL)
	{
		base_log(BASE_LOG_ERROR, "could not open file \"%s\": %s", file_name,
				 strerror(errno));
		return false;
	}
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char	   *name = line + strspn(line, " \t");
		char	   *value = strchr(name, '=');
		const BaseSetting *setting = NULL;
		char	  **slot;

		number++;
		if (*name == '#' || *name == '\n' || *name == '\0')
			continue;
		if (settings->take != NULL && is_section(name, &section))
		{
			settings->take(made, section, NULL, NULL);
			continue;
		}
		if (value != NULL)
		{
			size_t		length = value - name;

			while (length > 0 && (name[length - 1] == ' ' || name[length - 1] == '\t'))
				length--;
			if (section == NULL)
				setting = find_setting(settings, name, length);
			name[length] = '\0';
			value += 1 + strspn(value + 1, " \t");
			for (char *end = value + strlen(value);
				 end > value && isspace((unsigned char) end[-1]);)
				*--end = '\0';
			if (section != NULL && settings->take(made, section, name, value))
				continue;
		}
		if (setting == NULL)
		{
			base_log(BASE_LOG_ERROR, "file \"%s\", line %d: no such setting",
					 file_name, number);
			good = false;
			continue;
		}
		slot = &values[setting - settings->list];
		if (*slot == NULL)
			*slot = base_copy(value);
	}
	fclose(file);
	free(section);
	return good;
}

/* Is it a line [section]?  Then that is the section from here on. */
static bool
is_section(char *line, char **section)
{
	char	   *end = line + strlen(line);

	while (end > line && isspace((unsigned char) end[-1]))
		end--;
	if (*line != '[' || end - line < 3 || end[-1] != ']')
		return false;
	end[-1] = '\0';
	free(*section);
	*section = base_copy(line + 1);
	return true;
}

/*
 * Set the member of a struct.  What was there is not freed.  Returns false if
 * the value is wrong, as logged.
 */
bool
base_setting_set(void *into, const BaseSetting *setting, const char *value)
{
	char	   *field = (char *) into + setting->offset;
	char	   *end;
	long		number;

	if (setting->most == 0)
	{
		*(char **) field = base_copy(value);
		return true;
	}
	errno = 0;
	number = strtol(value, &end, 10);
	if (errno != 0 || end == value || *end != '\0' ||
		number < setting->least || number > setting->most)
	{
		base_log(BASE_LOG_ERROR, "setting \"%s\" must be a number from %d to %d",
				 setting->name, setting->least, setting->most);
		return false;
	}
	*(int *) field = number;
	return true;
}

/* The name of a setting's variable of the environment. */
static void
print_variable(BaseText *name, const BaseSettings *settings,
			   const BaseSetting *setting)
{
	base_text_print(name, "%s%s", settings->environment, setting->name);
	for (char *c = name->data + strlen(settings->environment); *c != '\0'; c++)
		*c = *c == '-' ? '_' : toupper((unsigned char) *c);
}

/* The settings as they are now, or NULL if one is wrong; it has been logged. */
static void *
make_settings(const BaseSettings *settings)
{
	void	   *made = base_alloc(settings->size);
	char	  **values = base_alloc(settings->count * sizeof(char *));
	bool		good = true;

	for (size_t i = 0; i < settings->count; i++)
	{
		BaseText	name = {0};

		print_variable(&name, settings, &settings->list[i]);
		values[i] = base_copy(values_of_flags[i] != NULL ?
								  values_of_flags[i] :
								  getenv(name.data));
		free(name.data);
	}
	if (file_name != NULL)
		good = set_from_file(settings, values, made);
	for (size_t i = 0; i < settings->count; i++)
	{
		if (!base_setting_set(made, &settings->list[i],
							  values[i] != NULL ? values[i] : settings->list[i].preset))
			good = false;
		free(values[i]);
	}
	free(values);
	if (good && settings->complete(made))
		return made;
	free_settings(settings, made);
	return NULL;
}

static void
free_settings(const BaseSettings *settings, void *old)
{
	for (size_t i = 0; i < settings->count; i++)
		if (settings->list[i].most == 0)
			free(*(char **) ((char *) old + settings->list[i].offset));
	settings->release(old);
	free(old);
}

/*
 * Take the settings of the command line.  Returns NULL if the program is not to
 * run; then *status is how the process ends.
 */
void *
base_settings_load(const BaseSettings *settings, int argc, char **argv,
				   int *status)
{
	void	   *made;

	values_of_flags = base_alloc(settings->count * sizeof(char *));
	*status = 0;
	for (int i = 1; i < argc; i++)
	{
		const char *name = argv[i] + strspn(argv[i], "-");
		const char *value = strchr(name, '=');
		size_t		length = value != NULL ? (size_t) (value - name) : strlen(name);
		const BaseSetting *setting = find_setting(settings, name, length);

		if (strcmp(argv[i], "--help") == 0)
		{
			print_help(settings);
			return NULL;
		}
		if (strcmp(argv[i], "--version") == 0)
		{
			puts(FEEDPUB_PROGRAM " " FEEDPUB_VERSION);
			return NULL;
		}
		if (value == NULL && setting != NULL && setting->unit == NULL)
			value = "1";
		else if (value == NULL && i + 1 < argc)
			value = argv[++i];
		else if (value != NULL)
			value++;
		if (strncmp(argv[i], "--", 2) != 0 && value != argv[i])
			value = NULL;
		if (value != NULL && setting != NULL)
			values_of_flags[setting - settings->list] = base_copy(value);
		else if (value != NULL && length == 6 && strncmp(name, "config", 6) == 0)
			file_name = base_copy(value);
		else
		{
			fprintf(stderr, FEEDPUB_PROGRAM ": unknown option or no value: %.*s\n"
											"Try --help.\n",
					(int) length, name);
			*status = 2;
			return NULL;
		}
	}
	made = make_settings(settings);
	if (made == NULL)
		*status = 2;
	return made;
}

/*
 * Read the file again.  Returns the settings, and frees those before it; if
 * something is wrong, NULL, and nothing changes.
 */
void *
base_settings_reload(const BaseSettings *settings, void *old)
{
	void	   *made = make_settings(settings);

	if (made == NULL)
		return NULL;
	for (size_t i = 0; i < settings->count; i++)
	{
		const BaseSetting *s = &settings->list[i];
		size_t		size = s->most == 0 ? sizeof(char *) : sizeof(int);
		char		kept[sizeof(char *)];

		if (s->reloads)
			continue;
		/* what stays is exchanged, so that each text has one owner */
		memcpy(kept, (char *) old + s->offset, size);
		memcpy((char *) old + s->offset, (char *) made + s->offset, size);
		memcpy((char *) made + s->offset, kept, size);
	}
	free_settings(settings, old);
	return made;
}
