/* Coupled flows by a ranked walk: the max-min rates of maxmin.py, kept up to date from end to end.

   Capacities i of C_i bytes/s; flows j of weight w_j that move a_ij bytes on i per byte of their own. A flow's own limit
   l_j is a capacity of its own (C = l_j, a = 1). Capacities stand in the order of their levels, their *rank*; a flow is
   *held* by the first in that order which it crosses, and its rate is w_j L_i with the level of that one,

       L_i = (C_i - sum of a_ij w_j L_h over flows held by others, h) / (sum of a_ij w_j over flows that i holds),

   infinite where i holds none and has room. If levels never fall along the ranks, every flow crosses a full capacity on
   which no other flow has a higher level: these are the max-min rates. When a flow ends or comes, or a rate changes,
   levels are worked out again from the rank concerned on. One that comes out lower than the level before it changes
   places with that neighbour, takes over the flows that cross both, and is worked out again there.

   Time. A capacity's clock is the integral of its level, V_i = int L_i dt. A flow with q_j bytes left ends at
   E_j = V_i + q_j / w_j on the clock of i, which stays as it is however L_i changes, until another capacity holds the
   flow. The next end is the least (min over flows held by i of E_j - V_i) / L_i over all i.

   Slack. A flow crosses more capacities than can ever be full. Each flow j has a narrowest one, c(j), with the least
   C / (a w); what moves on i is at most

       sum over c of C_c max_j (a_ij w_j / a_cj w_j),    c = c(j) for flows j on i.

   While this is less than C_i and c is never i itself, i holds nothing whatever the others do: it has no rank.

   Worked example. X = 10 B/s, Y = 4 B/s; a (30 B) on X, b (2 B) on X and Y, c (4 B) on Y. Let X stand first: it holds a
   and b, L_X = 10/2 = 5; Y holds c, L_Y = (4 - 5)/1 is lower, so Y goes first and takes over b: L_Y = 4/2 = 2,
   L_X = (10 - 2)/1 = 8, E_b = 2 and E_c = 4 on Y, E_a = 30 on X. b ends after 1 s, with V_Y = 2, V_X = 8. Then
   L_Y = 4, L_X = 10; c ends (4 - 2)/4 = 0.5 s later, a (30 - 8 - 5)/10 = 1.7 s after that.

   Sums and levels are long double, and sums always added up afresh: a level may be a small difference of large numbers.
   Levels that differ by no more than rounding noise are equal, so that they do not change places for ever; what counts as
   noise grows with the changes of one walk. Times are picoseconds, rounded up. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef long double real;
#define PS 1e-12L
#define FORGIVEN 0.0078125L /* picoseconds of rounding noise, as units.to_ps */
#define NOISE 1e-14         /* relative: levels that differ by less are equal */
#define ROOM (1 - 1e-9)     /* of a capacity; what is nearer to full may hold flows */
#define NONE (-1)
#define LIMIT INT64_MAX      /* serial number of what limits a flow itself: at the same level others stand first */
#define FEW_RANKS(ranks, flows) ((ranks) < 8 * (flows)) /* to work out all takes less than to find which matter */

typedef struct { int32_t flow, capacity, place; } Load; /* place: among the entries of its capacity */
typedef struct { double pull; int32_t holder, load; } Entry; /* pull: coefficient times weight; holder: of its flow */
typedef struct { double most; int32_t capacity, flows; } Cover; /* most: bytes/s that it lets through to another one */
typedef struct {
    double rate, need;       /* need: the most that can move here, while it is slack */
    real clock, pull, first; /* of the flows that it holds: sum of their pulls, and their least end */
    int64_t serial;          /* of two at the same level the lower one stands first */
    int32_t rank, held, count, room; /* rank: NONE while slack; the first `held` of its `count` entries are those that it holds */
    int32_t changed;         /* what it holds has changed since pull and first were worked out */
    int32_t stale;           /* what its level follows from has changed since it was worked out */
    int32_t may_hold, covers, cover_room;
    Entry *entries;
    Cover *cover;
} Capacity;
typedef struct { int32_t flow, counter; } Reached; /* counter: NONE where the end of the flow itself is told */
typedef struct {
    real end;
    int64_t since_ps;        /* since when what holds it now holds it */
    int32_t first_load, loads, held, alive, told, first_count, counts; /* held: by which load, after its end too */
} Flow;
typedef struct {
    Capacity *capacities; Flow *flows; Load *loads;
    real *levels;            /* of capacities; INFINITY where one is not full */
    int32_t *order;          /* capacities by rank */
    int64_t *spent_ps;       /* how long each load has held its flow, before the present time */
    int32_t *counters, *counted, *ended, *free; /* free: capacities that were the limits of flows which have ended */
    Reached *reached;
    int64_t *told;           /* what the last run brought about */
    int32_t capacity_count, flow_count, load_count, counter_count, counted_count, ended_count, reached_count, free_count;
    int32_t capacity_room, flow_room, load_room, counter_room, counted_room, reached_room, told_room;
    int32_t ranks;           /* how many capacities have one */
    int32_t unranked;        /* whether one that may hold flows has none yet */
    int32_t from;            /* the rank from which levels must be worked out again */
    int64_t now_ps, next_ps;
} Net;

#define GROW(array, room) (array) = realloc((array), sizeof *(array) * (size_t)(room))
#define FITS(wanted, room) ((wanted) <= (room) || ((room) = 2 * (wanted), 0))

Net *net_new(int64_t now_ps)
{
    Net *net = calloc(1, sizeof *net);
    net->now_ps = now_ps;
    net->next_ps = NONE;
    return net;
}

void net_free(Net *net)
{
    for (int32_t i = 0; i < net->capacity_count; i++) {
        free(net->capacities[i].entries);
        free(net->capacities[i].cover);
    }
    free(net->capacities); free(net->flows); free(net->loads); free(net->levels); free(net->order);
    free(net->spent_ps); free(net->counters); free(net->counted); free(net->ended); free(net->free);
    free(net->reached); free(net->told); free(net);
}

int32_t net_capacity(Net *net, double rate, int64_t serial)
{
    int32_t number = net->capacity_count++;
    if (!FITS(net->capacity_count, net->capacity_room)) {
        GROW(net->capacities, net->capacity_room);
        GROW(net->levels, net->capacity_room);
        GROW(net->order, net->capacity_room);
        GROW(net->free, net->capacity_room);
    }
    net->capacities[number] = (Capacity){.rate = rate, .first = INFINITY, .serial = serial, .rank = NONE};
    net->levels[number] = INFINITY;
    return number;
}

/* Counts the flows here that it is given with. */
int32_t net_counter(Net *net)
{
    if (!FITS(net->counter_count + 1, net->counter_room)) GROW(net->counters, net->counter_room);
    net->counters[net->counter_count] = 0;
    return net->counter_count++;
}

/* The level of a capacity must be worked out again. */
static void again(Net *net, Capacity *capacity)
{
    capacity->stale = 1;
    if (capacity->rank != NONE && capacity->rank < net->from) net->from = capacity->rank;
}

/* So must those of all that a flow crosses. */
static void again_along(Net *net, const Flow *flow)
{
    for (int32_t k = flow->first_load; k < flow->first_load + flow->loads; k++)
        again(net, &net->capacities[net->loads[k].capacity]);
}

/* A capacity may hold flows from now on. */
static void give_rank(Net *net, int32_t number)
{
    Capacity *capacity = &net->capacities[number];
    if (capacity->rank != NONE) return;
    capacity->rank = net->ranks;
    net->order[net->ranks++] = number;
    again(net, capacity);
}

/* That it may will be seen when all that come with a flow are known. */
static void let_hold(Net *net, Capacity *capacity)
{
    if (!capacity->may_hold) net->unranked = 1;
    capacity->may_hold = 1;
}

/* What another one lets through to a capacity. */
static Cover *cover_of(Capacity *capacity, int32_t by)
{
    int32_t i = 0;
    while (i < capacity->covers && capacity->cover[i].capacity != by) i++;
    if (i == capacity->covers) {
        if (!FITS(i + 1, capacity->cover_room)) GROW(capacity->cover, capacity->cover_room);
        capacity->cover[capacity->covers++] = (Cover){0, by, 0};
    }
    return &capacity->cover[i];
}

/* How fast a load lets its flow be, at most, by the flow's weight. */
static real narrowness(const Net *net, const Load *load)
{
    const Capacity *capacity = &net->capacities[load->capacity];
    return capacity->rate / (real)capacity->entries[load->place].pull;
}

/* What a new flow loads is covered by its narrowest load; where several are, by the one that covers the most flows there.
   chosen = 0: count these; chosen = 1: add up what they let through, to mark those that may hold flows: the narrowest too. */
static void cover(Net *net, const Flow *flow, int chosen)
{
    const Load *loads = &net->loads[flow->first_load];
    real least = INFINITY;
    for (int32_t k = 0; k < flow->loads; k++) {
        real most = narrowness(net, &loads[k]);
        if (most < least) least = most;
    }
    for (int32_t k = 0; k < flow->loads; k++) {
        Capacity *capacity = &net->capacities[loads[k].capacity];
        double pull = capacity->entries[loads[k].place].pull;
        Cover *best = NULL;
        if (narrowness(net, &loads[k]) <= least * (1 + NOISE)) let_hold(net, capacity);
        for (int32_t by = 0; by < flow->loads && !capacity->may_hold; by++) {
            if (narrowness(net, &loads[by]) > least * (1 + NOISE)) continue;
            Cover *one = cover_of(capacity, loads[by].capacity);
            if (!chosen) one->flows++;
            else if (!best || one->flows > best->flows) best = one;
        }
        if (best && best->most < least * pull) {
            capacity->need += least * pull - best->most;
            best->most = least * pull;
        }
        if (capacity->need > capacity->rate * ROOM) let_hold(net, capacity); /* its rate may have fallen since */
    }
}

/* The level of a capacity, from those of all that stand before it; -1: it holds no flow and is too narrow all the same. */
static real level_of(Net *net, int32_t number)
{
    Capacity *capacity = &net->capacities[number];
    const Entry *entries = capacity->entries, *end = entries + capacity->count, *entry = entries + capacity->held;
    const real *levels = net->levels;
    real used = 0, more = 0; /* two sums, so that one need not wait for the other */
    for (; entry + 1 < end; entry += 2) {
        used += entry[0].pull * levels[entry[0].holder];
        more += entry[1].pull * levels[entry[1].holder];
    }
    if (entry < end) used += entry->pull * levels[entry->holder];
    used += more;
    if (capacity->changed) {
        capacity->pull = 0;
        capacity->first = INFINITY;
        for (int32_t i = 0; i < capacity->held; i++) {
            real ends = net->flows[net->loads[entries[i].load].flow].end;
            capacity->pull += entries[i].pull;
            if (ends < capacity->first) capacity->first = ends;
        }
        capacity->changed = 0;
    }
    if (!capacity->held) return used > capacity->rate * (1 + NOISE) ? -1 : INFINITY;
    return used < capacity->rate ? (capacity->rate - used) / capacity->pull : 0;
}

static void put(Net *net, Capacity *capacity, int32_t place, Entry entry)
{
    capacity->entries[place] = entry;
    net->loads[entry.load].place = place;
}

/* An entry changes places with another one of its capacity. */
static void exchange(Net *net, Capacity *capacity, int32_t place, int32_t other)
{
    Entry entry = capacity->entries[place];
    put(net, capacity, place, capacity->entries[other]);
    put(net, capacity, other, entry);
}

/* The capacity of a load holds its flow no more. */
static void let_go(Net *net, int32_t load)
{
    Capacity *capacity = &net->capacities[net->loads[load].capacity];
    exchange(net, capacity, net->loads[load].place, --capacity->held);
    capacity->changed = 1;
}

/* A flow is held by another one of its loads from now on. */
static void hold(Net *net, int32_t number, int32_t load)
{
    Flow *flow = &net->flows[number];
    int32_t holder = net->loads[load].capacity;
    Capacity *capacity = &net->capacities[holder];
    if (flow->held != NONE) {
        net->spent_ps[flow->held] += net->now_ps - flow->since_ps;
        flow->end -= net->capacities[net->loads[flow->held].capacity].clock;
        flow->since_ps = net->now_ps;
        let_go(net, flow->held);
    }
    flow->held = load;
    flow->end += capacity->clock;
    exchange(net, capacity, net->loads[load].place, capacity->held++);
    capacity->changed = 1;
    for (int32_t k = flow->first_load; k < flow->first_load + flow->loads; k++)
        net->capacities[net->loads[k].capacity].entries[net->loads[k].place].holder = holder;
    again_along(net, flow);
}

/* The capacity at a rank goes before its neighbour, and takes over the flows that cross both. */
static void go_before(Net *net, int32_t rank)
{
    int32_t number = net->order[rank], before = net->order[rank - 1];
    const Capacity *capacity = &net->capacities[number];
    for (int32_t i = capacity->held; i < capacity->count; i++) /* what takes a taken one's place was looked at */
        if (capacity->entries[i].holder == before)
            hold(net, net->loads[capacity->entries[i].load].flow, capacity->entries[i].load);
    net->order[rank] = before;
    net->order[rank - 1] = number;
    net->capacities[before].rank = rank;
    net->capacities[number].rank = rank - 1;
}

/* Whether a capacity with this level belongs before its neighbour in front. */
static int precedes(const Net *net, int32_t number, real level, int32_t before, real noise)
{
    real other = net->levels[before];
    if (level < other * (1 - noise)) return 1;
    return level <= other * (1 + noise) && level < INFINITY
        && net->capacities[number].serial < net->capacities[before].serial;
}

/* The levels of those behind a rank that a flow crosses follow from that of the one at this rank, which holds it. */
static void again_behind(Net *net, const Flow *flow, int32_t rank)
{
    for (int32_t k = flow->first_load; k < flow->first_load + flow->loads; k++) {
        Capacity *capacity = &net->capacities[net->loads[k].capacity];
        if (capacity->rank > rank) capacity->stale = 1;
    }
}

static void walk(Net *net)
{
    int64_t changes = 0, many = 4 * (int64_t)net->capacity_count * net->capacity_count + 1000;
    real noise = NOISE;
    int32_t behind = net->ranks; /* all behind this rank are stale */
    for (int32_t rank = net->from; rank < net->ranks;) {
        int32_t number = net->order[rank];
        Capacity *capacity = &net->capacities[number];
        real level = capacity->stale || rank > behind ? level_of(net, number) : net->levels[number];
        if (rank && precedes(net, number, level, net->order[rank - 1], noise)) {
            capacity->stale = 1; /* it holds more flows */
            go_before(net, rank--);
            if (++changes % many == 0) noise *= 4;
            continue;
        }
        capacity->stale = 0;
        if (level != net->levels[number] && rank < behind) {
            if (FEW_RANKS(net->ranks - rank, capacity->held)) behind = rank;
            else for (int32_t i = 0; i < capacity->held; i++)
                again_behind(net, &net->flows[net->loads[capacity->entries[i].load].flow], rank);
        }
        net->levels[number] = level;
        rank++;
    }
    net->from = net->ranks;
}

/* Time passes; no flow may end before. */
void net_advance(Net *net, int64_t now_ps)
{
    real seconds = (real)(now_ps - net->now_ps) * PS;
    for (int32_t rank = 0; rank < net->ranks && seconds > 0; rank++) {
        int32_t i = net->order[rank];
        if (net->levels[i] < INFINITY) net->capacities[i].clock += net->levels[i] * seconds;
    }
    net->now_ps = now_ps;
}

/* One more load of the last flow. */
static void add_load(Net *net, int32_t number, double pull)
{
    Capacity *capacity = &net->capacities[number];
    int32_t load = net->load_count++;
    if (!FITS(net->load_count, net->load_room)) {
        GROW(net->loads, net->load_room); GROW(net->spent_ps, net->load_room);
    }
    if (!FITS(capacity->count + 1, capacity->room)) GROW(capacity->entries, capacity->room);
    net->flows[net->flow_count - 1].loads++;
    net->loads[load] = (Load){net->flow_count - 1, number, capacity->count};
    net->spent_ps[load] = 0;
    capacity->entries[capacity->count++] = (Entry){pull, NONE, load};
}

/* One more flow, and what it is made of (see net_flows). */
static void add_flow(Net *net, const int64_t **longs, const double **reals)
{
    int64_t since_ps = *(*longs)++, told = *(*longs)++, loads = *(*longs)++, counts = *(*longs)++;
    double work = *(*reals)++, weight = *(*reals)++, limit = *(*reals)++;
    net->flow_count++;
    if (!FITS(net->flow_count, net->flow_room)) {
        GROW(net->flows, net->flow_room); GROW(net->ended, net->flow_room);
    }
    net->flows[net->flow_count - 1] = (Flow){
        .end = work, .since_ps = since_ps, .first_load = net->load_count, .held = NONE, .alive = 1, .told = (int32_t)told,
        .first_count = net->counted_count, .counts = (int32_t)counts};
    while (loads--) add_load(net, (int32_t)*(*longs)++, *(*reals)++);
    if (limit < INFINITY) {
        int32_t number = net->free_count ? net->free[--net->free_count] : net_capacity(net, limit, LIMIT);
        net->capacities[number].rate = limit;
        add_load(net, number, weight);
    }
    net->counted_count += (int32_t)counts;
    if (!FITS(net->counted_count, net->counted_room)) GROW(net->counted, net->counted_room);
    for (int32_t k = net->counted_count - (int32_t)counts; k < net->counted_count; k++)
        net->counters[net->counted[k] = (int32_t)*(*longs)++]++;
}

/* More flows, from now on; no flow may end before. Of each one after the other, in longs: since when it is held, whether
   its end is told, how many capacities and counters it has, the capacities, the counters; in reals: its bytes by its
   weight, its weight, its limit (infinite: none), its pulls. Its limit is its last load. held: which load holds it so far,
   or -1. */
void net_flows(Net *net, int64_t now_ps, int32_t count, const int64_t *held, const int64_t *longs, const double *reals)
{
    int32_t first = net->flow_count;
    net_advance(net, now_ps);
    for (int32_t j = 0; j < count; j++) add_flow(net, &longs, &reals);
    if (!FITS(net->flow_count + net->counted_count, net->reached_room)) GROW(net->reached, net->reached_room);
    for (int32_t j = 0; j < 2 * count; j++) cover(net, &net->flows[first + j % count], j >= count);
    for (int32_t j = 0; j < count; j++) {
        const Load *loads = &net->loads[net->flows[first + j].first_load];
        if (held[j] != NONE) let_hold(net, &net->capacities[loads[held[j]].capacity]);
    }
    for (int32_t i = 0; i < net->capacity_count && net->unranked; i++)
        if (net->capacities[i].may_hold) give_rank(net, i); /* in this order: of two at a level the first holds */
    net->unranked = 0;
    for (int32_t number = first; number < first + count; number++) {
        const Flow *flow = &net->flows[number];
        int32_t best = NONE;
        for (int32_t k = flow->first_load; k < flow->first_load + flow->loads; k++) {
            int32_t rank = net->capacities[net->loads[k].capacity].rank;
            if (rank != NONE && (best == NONE || rank < net->capacities[net->loads[best].capacity].rank)) best = k;
        }
        if (held[number - first] != NONE) hold(net, number, flow->first_load + (int32_t)held[number - first]);
        if (flow->held != best) hold(net, number, best);
    }
}

/* A capacity has another rate from now on. */
void net_rate(Net *net, int64_t now_ps, int32_t capacity, double rate)
{
    net_advance(net, now_ps);
    net->capacities[capacity].rate = rate;
    if (!net->capacities[capacity].count) return;
    for (int32_t i = 0; i < net->capacity_count; i++) give_rank(net, i); /* what covers them may allow more */
    again(net, &net->capacities[capacity]);
}

/* A flow that has a limit has another one from now on. */
void net_limit(Net *net, int64_t now_ps, int32_t flow, double limit)
{
    net_rate(net, now_ps, net->loads[net->flows[flow].first_load + net->flows[flow].loads - 1].capacity, limit);
}

/* When the next flow ends, in ps, INT64_MAX if it is no earlier; -1: none ever does as things stand. */
int64_t net_next(Net *net)
{
    if (net->from == net->ranks) return net->next_ps;
    walk(net);
    real least = INFINITY;
    for (int32_t rank = 0; rank < net->ranks; rank++) {
        int32_t i = net->order[rank];
        const Capacity *capacity = &net->capacities[i];
        if (capacity->first == INFINITY || !(net->levels[i] > 0)) continue;
        real seconds = (capacity->first - capacity->clock) / net->levels[i];
        if (seconds < least) least = seconds;
    }
    real wait_ps = ceill(least / PS - FORGIVEN);
    if (least == INFINITY) return net->next_ps = NONE;
    if (wait_ps >= (real)(INT64_MAX - net->now_ps)) return net->next_ps = INT64_MAX;
    return net->next_ps = net->now_ps + (wait_ps > 0 ? (int64_t)wait_ps : 0);
}

static void end(Net *net, int32_t number)
{
    Flow *flow = &net->flows[number];
    net->spent_ps[flow->held] += net->now_ps - flow->since_ps;
    flow->since_ps = net->now_ps;
    flow->alive = 0;
    again_along(net, flow);
    let_go(net, flow->held);
    for (int32_t k = flow->first_load; k < flow->first_load + flow->loads; k++) {
        Capacity *capacity = &net->capacities[net->loads[k].capacity];
        exchange(net, capacity, net->loads[k].place, --capacity->count);
        if (capacity->serial == LIMIT) net->free[net->free_count++] = net->loads[k].capacity;
    }
    net->ended[net->ended_count++] = number;
    if (flow->told) net->reached[net->reached_count++] = (Reached){number, NONE};
    for (int32_t k = flow->first_count; k < flow->first_count + flow->counts; k++)
        if (!--net->counters[net->counted[k]]) net->reached[net->reached_count++] = (Reached){number, net->counted[k]};
}

/* End the flows that end now. */
static void end_due(Net *net)
{
    for (int32_t rank = 0; rank < net->ranks; rank++) {
        int32_t i = net->order[rank];
        Capacity *capacity = &net->capacities[i];
        real due = capacity->clock + net->levels[i] * (2 * FORGIVEN * PS);
        if (!(net->levels[i] > 0) || !(capacity->first <= due)) continue;
        for (int32_t k = capacity->held - 1; k >= 0; k--) { /* what takes an ended one's place was looked at */
            int32_t flow = net->loads[capacity->entries[k].load].flow;
            if (net->flows[flow].end <= due) end(net, flow);
        }
    }
}

/* Go from end to end, those at `until_ps` not included, and no further than an instant in which something is reached:
   a flow whose end is told ends, or a counter comes to 0. Returns the time of the last end (-1: there was none); how many
   flows ended and how many of them reached something; those that ended; of each that reached something itself, the counter
   that it brought to 0 (-1: its own end is told), which of its loads held it last and since when, how many it has, and how
   long each had held it before. */
const int64_t *net_run(Net *net, int64_t until_ps)
{
    int64_t at_ps, last_ps = NONE;
    int32_t size = 3, many = 0;
    net->ended_count = net->reached_count = 0;
    while (!net->reached_count && (at_ps = net_next(net)) != NONE && at_ps < until_ps) {
        net_advance(net, last_ps = at_ps);
        end_due(net);
    }
    for (int32_t j = 0; j < net->reached_count; j++) many += 5 + net->flows[net->reached[j].flow].loads;
    if (!FITS(size + net->ended_count + many, net->told_room)) GROW(net->told, net->told_room);
    int64_t *told = net->told;
    told[0] = last_ps; told[1] = net->ended_count; told[2] = net->reached_count;
    for (int32_t j = 0; j < net->ended_count; j++) told[size++] = net->ended[j];
    for (int32_t j = 0; j < net->reached_count; j++) {
        const Flow *flow = &net->flows[net->reached[j].flow];
        told[size++] = net->reached[j].flow; told[size++] = net->reached[j].counter;
        told[size++] = flow->held - flow->first_load; told[size++] = flow->since_ps; told[size++] = flow->loads;
        for (int32_t k = 0; k < flow->loads; k++) told[size++] = net->spent_ps[flow->first_load + k];
    }
    return told;
}

/* What a flow in flight has left by its weight, its level, which load holds it since when (state[0], state[1]), how long
   each of its loads has held it before. */
double net_state(const Net *net, int32_t number, int64_t *state, double *level, const int64_t **spent_ps)
{
    const Flow *flow = &net->flows[number];
    *spent_ps = &net->spent_ps[flow->first_load];
    int32_t holder = net->loads[flow->held].capacity;
    *level = (double)net->levels[holder];
    state[0] = flow->held - flow->first_load;
    state[1] = flow->since_ps;
    return (double)(flow->end - net->capacities[holder].clock);
}
