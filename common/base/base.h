/*-------------------------------------------------------------------------
 *
 * base.h
 *	  What programs that serve feeds stand on: memory, text, the log, the loop
 *	  with its timers, settings.
 *
 * Such a program has one thread and one loop, and nothing of it waits.  So
 * nothing is locked.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_BASE_H
#define FEEDPUB_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define lengthof(array) (sizeof(array) / sizeof((array)[0]))

/* Text that grows. */
typedef struct BaseText
{
	char	   *data;
	size_t		length;
	size_t		size;
} BaseText;

typedef enum BaseLogLevel
{
	BASE_LOG_DEBUG,
	BASE_LOG_INFO,
	BASE_LOG_WARNING,
	BASE_LOG_ERROR
} BaseLogLevel;

/* A descriptor of the loop. */
typedef struct BaseSource BaseSource;
struct BaseSource
{
	void (*ready)(BaseSource *source, uint32_t events);
	int			fd;
	uint32_t	events;
	bool		is_watched;
	bool		is_ready;		/* for server.c */
};

/* What is to be done at a time; see timer.c. */
typedef struct BaseTimer BaseTimer;
struct BaseTimer
{
	void (*due)(BaseTimer *timer);
	int64_t		at;				/* ms, by base_now() */
	BaseTimer **slot;			/* NULL: it is not set */
	BaseTimer  *next;
	BaseTimer  *previous;
};

/* A setting of a program, which is a member of its struct of settings. */
typedef struct BaseSetting
{
	const char *name;
	const char *unit;			/* what --help shows as its value; NULL: a switch */
	const char *preset;
	int			least;
	int			most;			/* 0: it is text, a char * */
	bool		reloads;
	size_t		offset;
	const char *help;
} BaseSetting;

/* The settings of a program. */
typedef struct BaseSettings
{
	const char *summary;		/* of the program, in a sentence */
	const char *notes;			/* what --help ends with */
	const char *environment;	/* what the names of variables begin with */
	const BaseSetting *list;
	size_t		count;
	size_t		size;			/* of the struct */

	/*
	 * take a line below one of the form [section], or that one itself, without
	 * a name; false if there is no such setting.  NULL: the file has no sections
	 */
	bool (*take)(void *values, const char *section, const char *name,
				 const char *value);

	/* fill the struct's other members; false if a value is wrong, as logged */
	bool (*complete)(void *values);
	void (*release)(void *values);	/* free them */
} BaseSettings;

/* in log.c */
extern void base_log_level(const char *level);
extern void base_log_begin(BaseText *text, BaseLogLevel level);
extern void base_log_end(BaseText *text);
extern void base_log(BaseLogLevel level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* in loop.c */
extern void base_loop_start(void);
extern void base_loop_signals(void (*take)(int number));
extern void base_loop_watch(BaseSource *source, int fd, uint32_t events);
extern void base_loop_forget(BaseSource *source);
extern void base_loop_wait(int64_t timeout);

/* in settings.c */
extern void *base_settings_load(const BaseSettings *settings, int argc,
								char **argv, int *status);
extern bool base_setting_set(void *into, const BaseSetting *setting,
							 const char *value);
extern void *base_settings_reload(const BaseSettings *settings, void *old);

/* in text.c */
extern void *base_alloc(size_t size);
extern char *base_copy(const char *string);
extern void base_text_room(BaseText *text, size_t length);
extern void base_text_add(BaseText *text, const char *data, size_t length);
extern void base_text_print(BaseText *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
extern void base_text_json(BaseText *text, const char *string);
extern int	base_hex(char c);
extern void base_text_add_hex(BaseText *text, const char *bytes, size_t length);
extern void base_text_add_bytes(BaseText *text, const char *hex, size_t length);
extern int64_t base_now(void);

/* in timer.c */
extern void base_timer_set(BaseTimer *timer, int64_t at);
extern void base_timer_stop(BaseTimer *timer);
extern int64_t base_timer_sweep(void);

#endif							/* FEEDPUB_BASE_H */
