/*
 * frontd: accepts clients and other servers, stores what they bring, tells sessions what came.
 * One program, two roles: the master, and the workers it starts with --worker.
 */
#include "frontd/master.h"
#include "frontd/worker.h"

int main(int argc, char **argv)
{
    static const char *const extra[] = {"--worker", NULL};
    unsigned seen = 0;
    int status = 0;
    struct daemon *d = daemon_init(argc, argv, "frontd", extra, &seen, &status);
    if (!d)
        return status;
    return seen ? worker_run(d) : master_run(d);
}
