/*
 * Latency of the first packet of new flows, measured by one thread that is client and server at once.
 *
 *     probe udp|tcp SOURCE SERVER_PORT CPU < destinations-and-commands
 *
 * Standard input: lines "ADDRESS PORT", one for each destination, then an empty line, then for each block of samples a
 * line with their number. For each block one line of standard output: nanoseconds of each sample, separated by blanks,
 * in the end " / " and the nanoseconds of the whole block, sockets made and closed included.
 *
 * Everything is on one host and one processor: the packet goes through the hooks OUTPUT and POSTROUTING, over the
 * loopback interface, and is in the queue of the server's socket when send() returns; no other thread is woken, no
 * context is switched. What is timed is, for UDP, one datagram to the server and its answer (the whole way of the
 * first packet, and of a second one that finds its flow known); for TCP, connect().
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in *destinations;
static size_t count;
static struct sockaddr_in source;
static int server;
static uint64_t state = 0x9e3779b97f4a7c15u; /* a fixed seed: every run goes to the same destinations */

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t chance(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void limit_waiting(int sock)
{
    struct timeval two_seconds = {.tv_sec = 2};

    if (setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &two_seconds, sizeof two_seconds) ||
        setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &two_seconds, sizeof two_seconds))
        fail("setsockopt");
}

static int open_socket(int type)
{
    int sock = socket(AF_INET, type, 0);

    if (sock < 0)
        fail("socket");
    limit_waiting(sock);
    return sock;
}

static void open_server(int type, uint16_t port)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1;

    server = open_socket(type);
    if (setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
        (type == SOCK_DGRAM && setsockopt(server, IPPROTO_IP, IP_PKTINFO, &on, sizeof on)) ||
        bind(server, (struct sockaddr *)&any, sizeof any) || (type == SOCK_STREAM && listen(server, 16)))
        fail("server");
}

/* Answer one datagram, from the address that it was sent to. */
static void answer(void)
{
    char octet, control[CMSG_SPACE(sizeof(struct in_pktinfo))] __attribute__((aligned(8)));
    struct sockaddr_in peer;
    struct iovec part = {&octet, 1};
    struct msghdr message = {&peer, sizeof peer, &part, 1, control, sizeof control, 0};
    struct cmsghdr *head;
    struct in_pktinfo *packet;

    if (recvmsg(server, &message, 0) != 1 || !(head = CMSG_FIRSTHDR(&message)))
        fail("recvmsg");
    packet = (struct in_pktinfo *)CMSG_DATA(head);
    packet->ipi_spec_dst = packet->ipi_addr;
    packet->ipi_ifindex = 0;
    if (sendmsg(server, &message, 0) != 1)
        fail("sendmsg");
}

static uint64_t sample_udp(const struct sockaddr_in *destination)
{
    int sock = open_socket(SOCK_DGRAM);
    char octet = 'x';
    uint64_t began, took;

    if (bind(sock, (struct sockaddr *)&source, sizeof source) ||
        connect(sock, (const struct sockaddr *)destination, sizeof *destination))
        fail("client");
    began = now_ns();
    if (send(sock, &octet, 1, 0) != 1)
        fail("send");
    answer();
    if (recv(sock, &octet, 1, 0) != 1)
        fail("no answer");
    took = now_ns() - began;
    close(sock);
    return took;
}

static uint64_t sample_tcp(const struct sockaddr_in *destination)
{
    struct linger at_once = {1, 0}; /* a reset instead of a port that waits for a minute */
    int sock = open_socket(SOCK_STREAM), accepted;
    uint64_t began, took;

    if (bind(sock, (struct sockaddr *)&source, sizeof source) ||
        setsockopt(sock, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once))
        fail("client");
    began = now_ns();
    if (connect(sock, (const struct sockaddr *)destination, sizeof *destination))
        fail("connect");
    took = now_ns() - began;
    if ((accepted = accept(server, NULL, NULL)) < 0)
        fail("accept");
    close(sock);
    close(accepted);
    return took;
}

static void read_destinations(void)
{
    char line[64], address[40];
    unsigned port;
    size_t room = 0;

    while (fgets(line, sizeof line, stdin) && line[0] != '\n') {
        if (count == room && !(destinations = realloc(destinations, (room = 2 * room + 64) * sizeof *destinations)))
            fail("realloc");
        destinations[count] = (struct sockaddr_in){.sin_family = AF_INET};
        if (sscanf(line, "%39s %u", address, &port) != 2 || port > 65535 ||
            inet_pton(AF_INET, address, &destinations[count].sin_addr) != 1)
            fail(line);
        destinations[count++].sin_port = htons((uint16_t)port);
    }
}

static void run_block(size_t samples, uint64_t (*sample)(const struct sockaddr_in *))
{
    uint64_t *took = calloc(samples + 1, sizeof *took), began = now_ns(), whole;

    if (!took)
        fail("calloc");
    for (size_t index = 0; index < samples; index++)
        took[index] = sample(&destinations[chance() % count]);
    whole = now_ns() - began;
    for (size_t index = 0; index < samples; index++)
        printf("%llu ", (unsigned long long)took[index]);
    printf("/ %llu\n", (unsigned long long)whole);
    fflush(stdout);
    free(took);
}

int main(int argc, char **argv)
{
    int is_tcp = argc == 5 && !strcmp(argv[1], "tcp");
    char line[64];
    cpu_set_t one;

    if (argc != 5)
        return 2;
    CPU_ZERO(&one);
    CPU_SET(atoi(argv[4]), &one);
    if (sched_setaffinity(0, sizeof one, &one))
        fail("sched_setaffinity");
    source.sin_family = AF_INET;
    if (inet_pton(AF_INET, argv[2], &source.sin_addr) != 1)
        fail(argv[2]);
    open_server(is_tcp ? SOCK_STREAM : SOCK_DGRAM, (uint16_t)atoi(argv[3]));
    read_destinations();
    if (count == 0)
        return 2;
    while (fgets(line, sizeof line, stdin))
        run_block(strtoul(line, NULL, 10), is_tcp ? sample_tcp : sample_udp);
    return 0;
}
