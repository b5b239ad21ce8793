// SPDX-License-Identifier: LGPL-2.1-only

import com.xensource.xenapi.APIVersion;
import com.xensource.xenapi.Connection;
import com.xensource.xenapi.SR;
import com.xensource.xenapi.Session;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URL;

/** What the SDK makes of each error that the pool answers: a line `class<tab>text` for each line of the input. */
public class Exceptions {
    public static void main(String[] arguments) throws Exception {
        Connection connection = new Connection(new URL(System.getenv("XENSERVER_HOST")), 60, 60);
        Session.loginWithPassword(
            connection, System.getenv("XENSERVER_USER"), System.getenv("XENSERVER_PASSWORD"), "1.3");
        BufferedReader wanted = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String label = wanted.readLine(); label != null; label = wanted.readLine()) {
            try {
                SR.getByNameLabel(connection, label);
                System.out.println("no exception\t");
            } catch (Exception exception) {
                System.out.println(exception.getClass().getSimpleName() + "\t" + exception);
            }
        }
    }
}
