// Jdbc.java prepared|unprepared [feature]: what works in JDBC.  See node.mjs.
import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Jdbc {
    static Connection first, second;
    static String only;

    interface Check { String run() throws Exception; }

    static void report(String feature, Check check) throws Exception {
        if (only != null && !feature.equals(only)) return;
        String result;
        try {
            result = check.run();
        } catch (SQLException error) {
            result = "no: " + (error.getSQLState() != null ? error.getSQLState() : error.getMessage());
        } catch (Exception error) {
            result = "no: " + error.getMessage();
        }
        if (!first.getAutoCommit()) {
            first.rollback();
            first.setAutoCommit(true);
        }
        System.out.println(feature + ": " + (result == null ? "works" : result));
    }

    static void expect(Object got, Object wanted) {
        if (!got.equals(wanted)) throw new RuntimeException(got + " in place of " + wanted);
    }

    static List<Object[]> rows(PreparedStatement statement, Object... values) throws SQLException {
        for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
        List<Object[]> rows = new ArrayList<>();
        try (ResultSet result = statement.executeQuery()) {
            while (result.next()) {
                Object[] row = new Object[result.getMetaData().getColumnCount()];
                for (int i = 0; i < row.length; i++) row[i] = result.getObject(i + 1);
                rows.add(row);
            }
        }
        return rows;
    }

    static List<Object[]> rows(String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = first.prepareStatement(sql)) {
            return rows(statement, values);
        }
    }

    static Object value(String sql, Object... values) throws SQLException {
        return rows(sql, values).get(0)[0];
    }

    static String column(List<Object[]> rows, int column) {
        return rows.stream().map(row -> String.valueOf(row[column])).collect(Collectors.joining(" "));
    }

    static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    static String altered(String column, String ddl, String entry) throws SQLException {
        String query = "SELECT " + entry + " FROM feed_read(NULL::outbox, ?, ?) /* " + ddl + " */";
        try (PreparedStatement statement = first.prepareStatement(query)) {
            for (int i = 0; i < 6; i++) rows(statement, "", 10);
            execute(second, ddl);
            statement.setObject(1, "");
            statement.setObject(2, 10);
            try (ResultSet result = statement.executeQuery()) {
                ResultSetMetaData columns = result.getMetaData();
                String has = "";
                for (int i = 1; i <= columns.getColumnCount(); i++) has += " " + columns.getColumnName(i);
                result.next();
                return (has + result.getString(1)).contains(column) ? null : "no: missing";
            }
        }
    }

    static String escape(Connection connection) throws SQLException {
        try (CallableStatement call = connection.prepareCall("{call feed_await(?::regclass, ?, ?::interval)}")) {
            expect(rows(call, "outbox", "", "1 min").get(0)[0], true);
        }
        return null;
    }

    // Waits in another thread, and returns what came of it.
    static Object waiting(Function then) throws Exception {
        ExecutorService executor = Executors.newSingleThreadExecutor();
        try (PreparedStatement statement = first.prepareStatement(
                "SELECT feed_wait(?::regclass, feed_head(?::regclass), ?::interval)");
                Statement looking = second.createStatement()) {
            Future<Object> ended = executor.submit(() -> {
                try {
                    return rows(statement, "outbox", "outbox", "1 min").get(0)[0];
                } catch (SQLException error) {
                    return error.getSQLState();
                }
            });
            ResultSet result;
            do {
                result = looking.executeQuery("SELECT count(*) FROM pg_stat_activity"
                    + " WHERE wait_event_type = 'Extension' AND query LIKE '%feed_wait%' AND pid <> pg_backend_pid()");
                result.next();
            } while (!ended.isDone() && result.getInt(1) != 1);
            then.run(statement);
            return ended.get();
        } finally {
            executor.shutdown();
        }
    }

    interface Function { void run(Statement statement) throws SQLException; }

    public static void main(String[] arguments) throws Exception {
        String setting = "prepareThreshold=" + (arguments[0].equals("prepared") ? 5 : 0);
        if (arguments.length > 1) only = arguments[1];
        Map<String, String> env = System.getenv();
        String url = "jdbc:postgresql://" + env.get("PGHOST") + ":" + env.get("PGPORT") + "/"
            + env.get("PGDATABASE") + "?user=" + env.get("PGUSER") + "&" + setting;
        first = DriverManager.getConnection(url);
        second = DriverManager.getConnection(url);

        System.out.println("setting: `" + setting + "`");
        report("page", () -> {
            String cursor = "", keys = "";
            for (List<Object[]> page = null; page == null || !page.isEmpty();) {
                page = rows("SELECT cursor, (entry).message_key FROM feed_read(NULL::outbox, ?, ?)", cursor, 2);
                keys += " " + column(page, 1);
                if (!page.isEmpty()) cursor = (String) page.get(page.size() - 1)[0];
            }
            expect(keys.trim(), "1 2 3 4 5");
            String page = value("SELECT feed_page(?::regclass, ?, ?)", "outbox", cursor, 2).toString();
            expect(page.startsWith("{\"entries\": []"), true);
            return null;
        });
        report("uncast", () -> {
            expect(value("SELECT feed_wait(?, ?, ?)", "outbox", "", "0 s"), true);
            expect(rows("SELECT * FROM feed_fetch(NULL::outbox, ?, ?, ?)", "0", 0, 2).size(), 2);
            return null;
        });
        String anew = "ALTER FUNCTION feed_read(anyelement, text, integer, integer, integer, text[]) COST 1000";
        report("add", () -> altered("one", "ALTER TABLE outbox ADD COLUMN one int", "(entry).*"));
        report("replan", () -> altered("two", "ALTER TABLE outbox ADD COLUMN two int; " + anew, "(entry).*"));
        report("retype", () -> altered("two", "ALTER TABLE outbox ALTER COLUMN two TYPE bigint", "(entry).*"));
        report("to_jsonb", () -> altered("three", "ALTER TABLE outbox ADD COLUMN three int", "to_jsonb(entry)"));
        report("call", () -> {
            expect(value("CALL feed_await(?::regclass, ?, ?::interval)", "outbox", "", "1 min"), true);
            return null;
        });
        report("escape", () -> escape(first));
        report("escape-mode", () -> {
            try (Connection other = DriverManager.getConnection(url + "&escapeSyntaxCallMode=callIfNoReturn")) {
                return escape(other);
            }
        });
        report("pipeline", () -> {
            String page = "SELECT json_array_length(feed_page('outbox', '', ?) -> 'entries');";
            String lengths = "";
            try (PreparedStatement statement = first.prepareStatement(page + page + page)) {
                for (int i = 1; i <= 3; i++) statement.setInt(i, i);
                for (boolean more = statement.execute(); more; more = statement.getMoreResults()) {
                    statement.getResultSet().next();
                    lengths += " " + statement.getResultSet().getInt(1);
                }
            }
            expect(lengths, " 1 2 3");
            return null;
        });
        report("cursor", () -> {
            first.setAutoCommit(false);
            try (PreparedStatement statement =
                    first.prepareStatement("SELECT message_key FROM feed_fetch(NULL::outbox, ?::xid8, ?, ?)")) {
                statement.setFetchSize(2);
                expect(column(rows(statement, "0", 0, 100), 0), "1 2 3 4 5");
            }
            first.commit();
            return null;
        });
        report("declare", () -> {
            String keys = "";
            first.setAutoCommit(false);
            execute(first, "DECLARE c CURSOR FOR SELECT message_key FROM feed_fetch(NULL::outbox, '0', 0, 100)");
            for (List<Object[]> page = null; page == null || !page.isEmpty(); keys += " " + column(page, 0))
                page = rows("FETCH 2 FROM c");
            first.commit();
            expect(keys.trim(), "1 2 3 4 5");
            return null;
        });
        Object[] row = rows("SELECT feed_xid, feed_pos, scheduled FROM feed_fetch(NULL::outbox, '0', 0, 1)").get(0);
        Object[] read = rows("SELECT entry, feed_page('outbox', '', 1) FROM feed_read(NULL::outbox, '', 1)").get(0);
        report("xid8", () -> row[0].getClass().getSimpleName());
        report("bigint", () -> row[1].getClass().getSimpleName());
        report("timestamptz", () -> row[2].getClass().getSimpleName());
        report("json", () -> read[1].getClass().getSimpleName());
        report("entry", () -> read[0].getClass().getSimpleName());
        report("digits", () -> read[1].toString().contains("\"n\": 9007199254740993}") ? null : "no: rounded");
        report("ack", () -> {
            String receipt = null;
            first.setAutoCommit(false);
            for (boolean commit : new boolean[] { false, true }) {
                List<Object[]> page = rows("SELECT receipt, key ->> 'message_key' FROM feed_poll(?, ?)", "mail", 2);
                try (PreparedStatement insert = first.prepareStatement("INSERT INTO effect VALUES (?)")) {
                    for (Object[] entry : page) {
                        insert.setObject(1, entry[1]);
                        insert.executeUpdate();
                        receipt = (String) entry[0];
                    }
                }
                expect(value("SELECT feed_ack(?, ?)", "mail", receipt), true);
                if (commit) first.commit(); else first.rollback();
            }
            first.setAutoCommit(true);
            expect(column(rows("SELECT key FROM effect ORDER BY key"), 0), "1 2");
            try {
                value("SELECT feed_ack(?, ?)", "mail", receipt);
                return "no: no error in place of PF005";
            } catch (SQLException error) {
                expect(error.getSQLState(), "PF005");
            }
            return null;
        });
        report("wait", () -> {
            expect(waiting(waiting -> execute(second, "INSERT INTO outbox (message_type, data) VALUES ('News', '6')")), true);
            return null;
        });
        report("cancel", () -> {
            expect(waiting(waiting -> waiting.cancel()), "57014");
            expect(value("SELECT 1"), 1);
            return null;
        });
        report("session", () -> {
            try (PreparedStatement statement = first.prepareStatement("SELECT feed_page(?::regclass)")) {
                second.setAutoCommit(false);
                execute(second, "SELECT 1");
                for (int i = 0; i < 6; i++) rows(statement, "outbox");
                second.commit();
                first.setAutoCommit(false);
                rows(statement, "outbox");
                first.commit();
            }
            return null;
        });
        first.close();
        second.close();
    }
}
