// One stream of messages over UDT, for `haul-lab services jitter`:
//
//   flow recv PORT MESSAGE_BYTES                             records when each message is complete
//   flow send HOST PORT RATE_BPS MESSAGE_BYTES MILLIS        sends messages at a rate, like haul-lab's TCP sender
//
// The receiver prints `listening`, and at the end one line per message: nanoseconds since its start.

#include <arpa/inet.h>
#include <sys/prctl.h>
#include <udt/udt.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

// Packets in flight and bytes of each buffer: more than 1 Gbit/s needs at a round-trip time of 200 ms.
const int WINDOW = 65536;
const int BUFFER = 64 << 20;
// As Haulage's sockets; the kernel grants less without root.
const int SOCKET_BUFFER = 16 << 20;
// The receive timeout that haul-lab uses for TCP.
const int QUIET_MILLIS = 6000;
const std::chrono::seconds CONNECT_TIMEOUT(30);

[[noreturn]] void die(const std::string& what) {
    std::fprintf(stderr, "flow: %s\n", what.c_str());
    std::exit(1);
}

[[noreturn]] void udt_died(const std::string& what) { die(what + ": " + UDT::getlasterror().getErrorMessage()); }

template <typename T>
void set(UDTSOCKET socket, UDT::SOCKOPT option, T value) {
    if (UDT::setsockopt(socket, 0, option, &value, sizeof value) == UDT::ERROR) udt_died("cannot set an option");
}

// Bound to `here`, over a UDP socket created here: UDT's own sockets are limited to net.core.rmem_max, which its first
// burst overflows.
UDTSOCKET stream_socket(const sockaddr_in& here) {
    UDTSOCKET socket = UDT::socket(AF_INET, SOCK_STREAM, 0);
    if (socket == UDT::INVALID_SOCK) udt_died("no socket");
    set(socket, UDT_FC, WINDOW);
    set(socket, UDT_SNDBUF, BUFFER);
    set(socket, UDT_RCVBUF, BUFFER);
    set(socket, UDP_SNDBUF, SOCKET_BUFFER);
    set(socket, UDP_RCVBUF, SOCKET_BUFFER);
    set(socket, UDT_LINGER, linger{1, 5});
    const int udp = ::socket(AF_INET, SOCK_DGRAM, 0);
    if (udp < 0 || ::bind(udp, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0) die("cannot bind");
    if (UDT::bind2(socket, udp) == UDT::ERROR) udt_died("cannot bind");
    for (const int option : {SO_RCVBUFFORCE, SO_SNDBUFFORCE})
        ::setsockopt(udp, SOL_SOCKET, option, &SOCKET_BUFFER, sizeof SOCKET_BUFFER);
    return socket;
}

uint64_t number(const char* text, uint64_t least, uint64_t most) {
    char* end = nullptr;
    const uint64_t value = std::strtoull(text, &end, 10);
    if (end != text && !*end && value >= least && value <= most) return value;
    die(std::string(text) + " is not a number in the permitted range");
}

// Each message begins with its number, 8 bytes.
size_t message_bytes(const char* text) { return number(text, 8, 1 << 20); }

sockaddr_in address(const char* host, const char* port) {
    sockaddr_in address{AF_INET, htons(static_cast<uint16_t>(number(port, 0, 65535))), {}, {}};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die(std::string(host) + " is not an IPv4 address");
    return address;
}

int receive(const char* port, size_t bytes) {
    const UDTSOCKET listener = stream_socket(address("0.0.0.0", port));
    if (UDT::listen(listener, 1) == UDT::ERROR) udt_died("cannot listen");
    std::puts("listening");
    std::fflush(stdout);
    const UDTSOCKET socket = UDT::accept(listener, nullptr, nullptr);
    if (socket == UDT::INVALID_SOCK) udt_died("cannot accept a connection");
    set(socket, UDT_RCVTIMEO, QUIET_MILLIS);
    std::vector<char> message(bytes);
    std::vector<int64_t> arrivals;
    arrivals.reserve(1 << 20);
    const auto start = Clock::now();
    for (size_t have = 0;;) {
        const int got = UDT::recv(socket, message.data() + have, static_cast<int>(bytes - have), 0);
        if (got <= 0) break;  // End of the stream, or timeout.
        have += static_cast<size_t>(got);
        if (have < bytes) continue;
        arrivals.push_back(nanoseconds(Clock::now() - start).count());
        have = 0;
    }
    for (const int64_t arrival : arrivals) std::printf("%lld\n", static_cast<long long>(arrival));
    return std::fflush(stdout) == 0 ? 0 : 1;
}

UDTSOCKET connect_to(const sockaddr_in& there) {
    for (const auto until = Clock::now() + CONNECT_TIMEOUT;;) {
        const UDTSOCKET socket = stream_socket(address("0.0.0.0", "0"));
        if (UDT::connect(socket, reinterpret_cast<const sockaddr*>(&there), sizeof there) != UDT::ERROR) return socket;
        if (Clock::now() > until) udt_died("cannot connect");
        UDT::close(socket);
    }
}

int send(const sockaddr_in& there, double rate, size_t bytes, uint64_t millis) {
    const UDTSOCKET socket = connect_to(there);
    std::vector<char> message(bytes, 0x5a);
    const auto start = Clock::now();
    uint64_t sent = 0, count = 0;
    while (Clock::now() - start < std::chrono::milliseconds(millis)) {
        const nanoseconds due(static_cast<int64_t>(static_cast<double>(sent) * 8e9 / rate));
        std::this_thread::sleep_for(due - (Clock::now() - start));
        ++count;
        for (int i = 0; i < 8; ++i) message[i] = static_cast<char>(count >> (8 * (7 - i)));
        for (size_t gone = 0; gone < bytes;) {
            const int took = UDT::send(socket, message.data() + gone, static_cast<int>(bytes - gone), 0);
            if (took == UDT::ERROR) udt_died("cannot send");
            gone += static_cast<size_t>(took);
        }
        sent += bytes;
    }
    return UDT::close(socket) == UDT::ERROR ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    // Ends with haul-lab, even if that is killed.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    UDT::startup();
    const std::string what = argc > 1 ? argv[1] : "";
    int code = 2;
    if (what == "recv" && argc == 4) code = receive(argv[2], message_bytes(argv[3]));
    else if (what == "send" && argc == 7)
        code = send(address(argv[2], argv[3]), static_cast<double>(number(argv[4], 1, UINT64_MAX)),
                    message_bytes(argv[5]), number(argv[6], 1, 3600000));
    else std::fprintf(stderr, "flow recv PORT MESSAGE_BYTES | flow send HOST PORT RATE_BPS MESSAGE_BYTES MILLIS\n");
    UDT::cleanup();
    return code;
}
