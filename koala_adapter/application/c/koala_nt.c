/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what koala writes, and every template that says the same in other white space, quotes or comments. It is
 * stricter than XML: namespaces are declared on the root, and there is no CDATA. */
#define _POSIX_C_SOURCE 200809L
#include "koala_nt.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define HEADER 9
#define OURS "urn:koala-adapter:negotiation"
#define XSI "http://www.w3.org/2001/XMLSchema-instance"
#define MOST_ATTRIBUTES 16
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

static const char *const STATUS[] = {"NT_NEGOTIATION", "NT_ACCEPTED",  "NT_COMMITTED", "NT_CONSUMED",
                                     "NT_REJECTED",    "NT_WITHDRAWN", "NT_EXPIRED",   "NT_ERROR"};
static const char *const SIDE[] = {"RMS", "APPLICATION"};
static const char *const USAGE[] = {"NT_REQUIRED", "NT_OPTIONAL"};
static const char *const NEGOTIABILITY[] = {"NT_NEGOTIABLE", "NT_FIXED"};

static __thread char error_text[256];

const char *NT_Error(void) { return error_text; }

static int fail(const char *format, ...) {
    va_list words;
    va_start(words, format);
    vsnprintf(error_text, sizeof error_text, format, words);
    va_end(words);
    return -1;
}

/* What may stand in a field. */

static int is_word(const char *text, const char *first, const char *rest, size_t longest) {
    size_t size = strlen(text);
    return size >= 1 && size <= longest && strchr(first, text[0]) && strspn(text, rest) == size;
}

static int choice(const char *text, const char *const *words, int count) {
    for (int number = 0; number < count; number++)
        if (!strcmp(text, words[number])) return number;
    return -1;
}

/* Returns a number of so many digits at most, above 0; -1: it is none. */
static long number(const char *text, size_t digits) {
    if (!is_word(text, DIGITS, DIGITS, digits)) return -1;
    long long value = atoll(text);
    return value >= 1 && value <= 2147483647 ? (long)value : -1;
}

static int check(const NT *nt) {
    const char *id = LETTERS DIGITS "._:-", *name = LETTERS DIGITS "_-";
    if (!is_word(nt->agreement_id, id, id, 64)) return fail("NT_AgreementID is wrong");
    if (!is_word(nt->source, id, id, 255)) return fail("NT_Source is wrong");
    if (!is_word(nt->dest, id, id, 255)) return fail("NT_Dest is wrong");
    if (nt->resources < 0 || nt->resources > NT_MOST_RESOURCES) return fail("there are too many resources");
    if (!nt->resources && nt->status != NT_ERROR) return fail("a template has at least one Resource");
    if (nt->round < 0 || nt->round > 9999) return fail("Round is wrong");
    if (nt->answer_within < 0 || nt->answer_within > 9999999999L) return fail("AnswerWithin is wrong");
    for (int i = 0; i < nt->resources; i++) {
        const NT_Resource *one = &nt->resource[i];
        if (!is_word(one->type, LETTERS, LETTERS DIGITS "._-", 64)) return fail("Type is wrong");
        if (one->cluster[0] && !is_word(one->cluster, LETTERS, name, 63)) return fail("Cluster is wrong");
        if (one->component[0] && !is_word(one->component, LETTERS, name, 63)) return fail("Component is wrong");
        if (one->quantity < 1 || one->quantity > 2147483647 || one->quantity < one->minimum ||
            (one->maximum && one->quantity > one->maximum))
            return fail("Quantity of %s is wrong", one->type);
        if (!one->optional && one->status == NT_REJECTED && nt->status <= NT_CONSUMED)
            return fail("a required resource is declined: reject the whole");
        for (int j = 0; j < i; j++)
            if (!strcmp(one->type, nt->resource[j].type) && !strcmp(one->cluster, nt->resource[j].cluster) &&
                !strcmp(one->component, nt->resource[j].component))
                return fail("two resources have the same Type, Cluster and Component");
    }
    return 0;
}

/* Characters. */

/* Returns how many bytes the character takes, and which it is; 0: it is none that XML allows. */
static int character(const unsigned char *at, const unsigned char *end, unsigned *code) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    int size = *at < 0x80 ? 1 : *at >= 0xc2 && *at < 0xe0 ? 2 : *at >= 0xe0 && *at < 0xf0 ? 3 : *at >= 0xf0 && *at < 0xf5 ? 4 : 0;
    if (!size || end - at < size) return 0;
    *code = size == 1 ? *at : *at & (0x7f >> size);
    for (int i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (at[i] & 0x3f);
    }
    if (*code < least[size] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000)) return 0;
    if (*code == 0xfffe || *code == 0xffff || (*code < 0x20 && *code != 9 && *code != 10 && *code != 13)) return 0;
    return size;
}

/* A reason is at most 500 characters on one line. */
static int check_reason(const char *reason) {
    const unsigned char *at = (const unsigned char *)reason, *end = at + strlen(reason);
    unsigned code;
    for (int count = 0; at < end; count++) {
        int size = character(at, end, &code);
        if (!size || code < 0x20 || (code >= 0x7f && code < 0xa0) || count == 500) return fail("Reason is wrong");
        at += size;
    }
    return 0;
}

/* XML. */

typedef struct {
    char name[64];
    char value[2049];
} Attribute;

typedef struct {
    const char *at, *end;
    Attribute attribute[MOST_ATTRIBUTES];
    int attributes;
    Attribute prefix[MOST_ATTRIBUTES]; /* of namespaces */
    int prefixes;
} Reader;

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static int spaces(Reader *in) {
    const char *begin = in->at;
    while (in->at < in->end && is_space(*in->at)) in->at++;
    return in->at > begin;
}

static int next(Reader *in, const char *text) {
    size_t size = strlen(text);
    if ((size_t)(in->end - in->at) < size || memcmp(in->at, text, size)) return 0;
    in->at += size;
    return 1;
}

/* Passes white space and comments. */
static int misc(Reader *in) {
    for (;;) {
        spaces(in);
        if (!next(in, "<!--")) return 0;
        while (!next(in, "--"))
            if (++in->at >= in->end) return fail("a comment does not end");
        if (!next(in, ">")) return fail("-- stands in a comment");
    }
}

static int read_name(Reader *in, char *name, size_t room) {
    size_t size = 0;
    while (in->at < in->end && strchr(LETTERS DIGITS "_.:-", *in->at) && *in->at) {
        if (size + 1 >= room) return fail("a name is too long");
        name[size++] = *in->at++;
    }
    name[size] = 0;
    return size && strchr(LETTERS "_", name[0]) ? 0 : fail("a name was expected");
}

static int read_reference(Reader *in, char *value, size_t room, size_t *size) {
    static const char *const names[] = {"lt;", "gt;", "amp;", "quot;", "apos;"};
    for (int i = 0; i < 5; i++)
        if (next(in, names[i])) {
            if (*size + 1 >= room) return fail("an attribute is too long");
            value[(*size)++] = "<>&\"'"[i];
            return 0;
        }
    return fail("a reference that is not known");
}

static int read_value(Reader *in, char *value, size_t room) {
    char quote = in->at < in->end ? *in->at++ : 0;
    size_t size = 0;
    if (quote != '"' && quote != '\'') return fail("an attribute is not in quotes");
    while (in->at < in->end && *in->at != quote) {
        if (*in->at == '<') return fail("< stands in an attribute");
        if (*in->at == '&') {
            in->at++;
            if (read_reference(in, value, room, &size)) return -1;
            continue;
        }
        if (size + 1 >= room) return fail("an attribute is too long");
        value[size++] = is_space(*in->at) ? ' ' : *in->at;
        if (*in->at == '\r' && in->end - in->at > 1 && in->at[1] == '\n') in->at++;
        in->at++;
    }
    value[size] = 0;
    return in->at++ < in->end ? 0 : fail("an attribute does not end");
}

static int read_attributes(Reader *in, const char *close) {
    for (in->attributes = 0;;) {
        int spaced = spaces(in);
        if (next(in, close)) return 0;
        if (!spaced || in->attributes == MOST_ATTRIBUTES) return fail("attributes that cannot be read");
        Attribute *one = &in->attribute[in->attributes];
        if (read_name(in, one->name, sizeof one->name)) return -1;
        spaces(in);
        if (!next(in, "=")) return fail("an attribute without a value");
        spaces(in);
        if (read_value(in, one->value, sizeof one->value)) return -1;
        for (int i = 0; i < in->attributes; i++)
            if (!strcmp(in->attribute[i].name, one->name)) return fail("%s stands twice", one->name);
        in->attributes++;
    }
}

static int read_declaration(Reader *in) {
    static const char *const names[] = {"version", "encoding", "standalone"};
    int place = 0;
    if (!next(in, "<?xml")) return 0;
    if (read_attributes(in, "?>")) return -1;
    if (!in->attributes || strcmp(in->attribute[0].name, "version")) return fail("an XML declaration without a version");
    for (int i = 0; i < in->attributes; i++) {
        const char *value = in->attribute[i].value;
        while (place < 3 && strcmp(in->attribute[i].name, names[place])) place++;
        if (place == 3 || (place == 0 && strcmp(value, "1.0")) ||
            (place == 1 && strcasecmp(value, "utf-8")) ||
            (place == 2 && strcmp(value, "yes") && strcmp(value, "no")))
            return fail("a template is XML 1.0 in UTF-8");
        place++;
    }
    return 0;
}

static char *trimmed(char *text) {
    while (*text == ' ') text++;
    for (size_t size = strlen(text); size && text[size - 1] == ' ';) text[--size] = 0;
    return text;
}

static int declare(Reader *in, const char *prefix, const char *uri) {
    int known = !strcmp(uri, OURS) || !strcmp(uri, XSI);
    int plain = !strncmp(uri, "urn:", 4) && uri[4] && strspn(uri, LETTERS DIGITS ":-") == strlen(uri);
    if (!known && !plain) return fail("a namespace that is not known");
    if (!strncmp(prefix, "xml", 3) || strchr(prefix, ':')) return fail("a prefix that cannot be");
    for (int i = 0; i < in->prefixes; i++)
        if (!strcmp(in->prefix[i].value, uri)) return fail("two prefixes of one namespace");
    strcpy(in->prefix[in->prefixes].name, prefix);
    strcpy(in->prefix[in->prefixes++].value, uri);
    return 0;
}

/* Returns the namespace of an attribute, "" without a prefix, NULL: it is not declared. */
static const char *namespace_of(const Reader *in, const char *name, const char **local) {
    const char *colon = strchr(name, ':');
    *local = colon ? colon + 1 : name;
    if (!colon) return "";
    if (!strchr(LETTERS "_", **local) || !**local || strchr(*local, ':')) return NULL;
    for (int i = 0; i < in->prefixes; i++)
        if (strlen(in->prefix[i].name) == (size_t)(colon - name) && !strncmp(in->prefix[i].name, name, colon - name))
            return in->prefix[i].value;
    return NULL;
}

static int copy(char *to, size_t room, const char *text) {
    if (strlen(text) >= room) return fail("a field is too long");
    strcpy(to, text);
    return 0;
}

static int take_milliseconds(NT *nt, const char *text) {
    char whole[8], part[4] = "000";
    size_t size = strspn(text, DIGITS), parts;
    if (size < 1 || size > 7) return fail("AnswerWithin is wrong");
    memcpy(whole, text, size);
    whole[size] = 0;
    if (text[size] == '.') {
        parts = strspn(text + size + 1, DIGITS);
        if (parts < 1 || parts > 3 || text[size + 1 + parts]) return fail("AnswerWithin is wrong");
        memcpy(part, text + size + 1, parts);
    } else if (text[size])
        return fail("AnswerWithin is wrong");
    nt->answer_within = atol(whole) * 1000 + atol(part);
    return nt->answer_within ? 0 : fail("AnswerWithin is wrong");
}

static int take_root(NT *nt, const char *name, char *value) {
    if (!strcmp(name, "Reason")) return check_reason(value) || copy(nt->reason, sizeof nt->reason, value) ? -1 : 0;
    value = trimmed(value);
    if (!strcmp(name, "AnswerWithin")) return take_milliseconds(nt, value);
    if (!strcmp(name, "Round")) return (nt->round = (int)number(value, 4)) < 1 ? fail("Round is wrong") : 0;
    if (!strcmp(name, "Direction")) {
        nt->direction = !strcmp(value, "grow") ? 'g' : !strcmp(value, "shrink") ? 's' : 0;
        return nt->direction ? 0 : fail("Direction is wrong");
    }
    if (!strcmp(name, "Obligation")) {
        nt->obligation = !strcmp(value, "voluntary") ? 'v' : !strcmp(value, "mandatory") ? 'm' : 0;
        return nt->obligation ? 0 : fail("Obligation is wrong");
    }
    return 0;
}

static int take_resource(NT_Resource *one, const char *name, char *value) {
    value = trimmed(value);
    if (!strcmp(name, "Minimum")) return (one->minimum = number(value, 10)) < 1 ? fail("Minimum is wrong") : 0;
    if (!strcmp(name, "Maximum")) return (one->maximum = number(value, 10)) < 1 ? fail("Maximum is wrong") : 0;
    if (!strcmp(name, "Cluster")) return *value ? copy(one->cluster, sizeof one->cluster, value) : fail("Cluster is wrong");
    if (!strcmp(name, "Component"))
        return *value ? copy(one->component, sizeof one->component, value) : fail("Component is wrong");
    return 0;
}

/* Takes the attributes of the root (one NULL) or of a resource. */
static int take_attributes(Reader *in, NT *nt, NT_Resource *one) {
    static __thread NT elsewhere; /* what is said of the wrong element counts for nothing, but must be right */
    static __thread NT_Resource nowhere;
    int identified = 0;
    for (int i = 0; i < in->attributes; i++)
        if (!strncmp(in->attribute[i].name, "xmlns", 5)) {
            const char *name = in->attribute[i].name;
            if (one || strncmp(name, "xmlns:", 6) || declare(in, name + 6, in->attribute[i].value))
                return fail("a namespace that cannot be declared here");
        }
    for (int i = 0; i < in->attributes; i++) {
        const char *name = in->attribute[i].name, *local, *uri = namespace_of(in, name, &local);
        char *value = in->attribute[i].value;
        if (!strncmp(name, "xmlns", 5)) continue;
        if (!uri) return fail("%s has no namespace", name);
        if (!strcmp(uri, XSI) && strcmp(local, "noNamespaceSchemaLocation") && strcmp(local, "schemaLocation"))
            return fail("an attribute %s", name);
        if (!strcmp(uri, OURS) &&
            (take_root(one ? &elsewhere : nt, local, value) || take_resource(one ? one : &nowhere, local, value)))
            return -1;
        if (*uri) continue;
        if (one || strcmp(name, "NT_AgreementID")) return fail("an attribute %s", name);
        identified = 1;
        if (copy(nt->agreement_id, sizeof nt->agreement_id, trimmed(value))) return -1;
    }
    return one || identified ? 0 : fail("NT_AgreementID is missing");
}

/* Reads <name>text</name>, which has no attributes. */
static int field(Reader *in, const char *name, char *text, size_t room) {
    size_t size = 0;
    if (misc(in)) return -1;
    if (!next(in, "<") || !next(in, name)) return fail("%s was expected", name);
    spaces(in);
    if (!next(in, ">")) return fail("%s was expected", name);
    spaces(in);
    while (in->at < in->end && *in->at != '<' && !is_space(*in->at)) {
        if (size + 1 >= room || *in->at == '&') return fail("%s is wrong", name);
        text[size++] = *in->at++;
    }
    text[size] = 0;
    spaces(in);
    if (!next(in, "</") || !next(in, name)) return fail("%s is wrong", name);
    spaces(in);
    return next(in, ">") ? 0 : fail("%s is wrong", name);
}

static int worded(Reader *in, const char *name, const char *const *words, int count) {
    char text[32];
    int found;
    if (field(in, name, text, sizeof text)) return -1;
    found = choice(text, words, count);
    return found < 0 ? fail("%s is %s", name, text) : found;
}

static int read_resource(Reader *in, NT *nt) {
    char text[16];
    int usage, negotiability, status;
    if (nt->resources == NT_MOST_RESOURCES) return fail("there are too many resources");
    NT_Resource *one = &nt->resource[nt->resources++];
    memset(one, 0, sizeof *one);
    if (read_attributes(in, ">") || take_attributes(in, nt, one)) return -1;
    if (field(in, "Type", one->type, sizeof one->type) || field(in, "Quantity", text, sizeof text)) return -1;
    if ((one->quantity = number(text, 10)) < 1) return fail("Quantity is %s", text);
    if ((usage = worded(in, "Usage", USAGE, 2)) < 0) return -1;
    if ((negotiability = worded(in, "Negotiability", NEGOTIABILITY, 2)) < 0) return -1;
    if ((status = worded(in, "Status", STATUS, 8)) < 0) return -1;
    one->optional = usage;
    one->fixed = negotiability;
    one->status = (enum NT_Status)status;
    if (misc(in) || !next(in, "</Resource")) return fail("the end of a Resource was expected");
    spaces(in);
    return next(in, ">") ? 0 : fail("the end of a Resource was expected");
}

static int check_characters(const char *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    unsigned code;
    while (at < end) {
        int bytes = character(at, end, &code);
        if (!bytes) return fail("byte %ld is no character of XML in UTF-8", (long)((const char *)at - data));
        at += bytes;
    }
    return 0;
}

int NT_Read(const char *data, size_t size, NT *nt) {
    static __thread Reader in;
    int side, status;
    memset(&in, 0, sizeof in);
    memset(nt, 0, sizeof *nt);
    in.at = data;
    in.end = data + size;
    if (size > NT_LARGEST) return fail("a template of %lu bytes is too large", (unsigned long)size);
    if (check_characters(data, size) || read_declaration(&in) || misc(&in)) return -1;
    if (!next(&in, "<NT") || read_attributes(&in, ">") || take_attributes(&in, nt, NULL))
        return error_text[0] ? -1 : fail("this is no template");
    if ((side = worded(&in, "NT_Initiator", SIDE, 2)) < 0) return -1;
    if (field(&in, "NT_Source", nt->source, sizeof nt->source)) return -1;
    if (field(&in, "NT_Dest", nt->dest, sizeof nt->dest)) return -1;
    if ((status = worded(&in, "NT_Status", STATUS, 8)) < 0) return -1;
    nt->initiator = (enum NT_Side)side;
    nt->status = (enum NT_Status)status;
    while (!misc(&in) && next(&in, "<Resource"))
        if (read_resource(&in, nt)) return -1;
    if (!next(&in, "</NT")) return fail("the end of NT was expected");
    spaces(&in);
    if (!next(&in, ">") || misc(&in) || in.at < in.end) return fail("something follows the template");
    return check(nt);
}

/* Writing. */

typedef struct {
    char *at;
    size_t room;
} Writer;

static void put(Writer *out, const char *format, ...) {
    va_list words;
    va_start(words, format);
    int size = vsnprintf(out->at, out->room, format, words);
    va_end(words);
    if (size < 0 || (size_t)size >= out->room) {
        out->room = 0;
        return;
    }
    out->at += size;
    out->room -= (size_t)size;
}

static void put_reason(Writer *out, const char *reason) {
    char quote = strchr(reason, '"') && !strchr(reason, '\'') ? '\'' : '"';
    put(out, " k:Reason=%c", quote);
    for (; *reason; reason++) {
        if (strchr("<>&", *reason))
            put(out, "&%s;", *reason == '<' ? "lt" : *reason == '>' ? "gt" : "amp");
        else if (*reason == quote)
            put(out, "&quot;");
        else
            put(out, "%c", *reason);
    }
    put(out, "%c", quote);
}

static void put_root(Writer *out, const NT *nt) {
    int more = nt->direction || nt->obligation || nt->answer_within || nt->round || nt->reason[0];
    for (int i = 0; i < nt->resources; i++)
        more |= nt->resource[i].minimum || nt->resource[i].maximum || nt->resource[i].cluster[0] ||
                nt->resource[i].component[0];
    put(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<NT NT_AgreementID=\"%s\" xmlns:xsi=\"" XSI "\"", nt->agreement_id);
    put(out, " xsi:noNamespaceSchemaLocation=\"NT.xsd\"%s", more ? " xmlns:k=\"" OURS "\"" : "");
    if (nt->direction) put(out, " k:Direction=\"%s\"", nt->direction == 'g' ? "grow" : "shrink");
    if (nt->obligation) put(out, " k:Obligation=\"%s\"", nt->obligation == 'v' ? "voluntary" : "mandatory");
    if (nt->answer_within) {
        char part[8];
        snprintf(part, sizeof part, ".%03ld", nt->answer_within % 1000);
        for (size_t size = strlen(part); part[size - 1] == '0' || (size == 1 && part[0] == '.');) {
            part[--size] = 0;
            if (!size) break;
        }
        put(out, " k:AnswerWithin=\"%ld%s\"", nt->answer_within / 1000, part);
    }
    if (nt->round) put(out, " k:Round=\"%d\"", nt->round);
    if (nt->reason[0]) put_reason(out, nt->reason);
    put(out, ">\n");
}

int NT_Write(const NT *nt, char *data, size_t size) {
    Writer out = {data, size};
    if (check(nt) || check_reason(nt->reason)) return -1;
    put_root(&out, nt);
    put(&out, "  <NT_Initiator>%s</NT_Initiator>\n  <NT_Source>%s</NT_Source>\n", SIDE[nt->initiator], nt->source);
    put(&out, "  <NT_Dest>%s</NT_Dest>\n  <NT_Status>%s</NT_Status>\n", nt->dest, STATUS[nt->status]);
    for (int i = 0; i < nt->resources; i++) {
        const NT_Resource *one = &nt->resource[i];
        put(&out, "  <Resource");
        if (one->minimum) put(&out, " k:Minimum=\"%ld\"", one->minimum);
        if (one->maximum) put(&out, " k:Maximum=\"%ld\"", one->maximum);
        if (one->cluster[0]) put(&out, " k:Cluster=\"%s\"", one->cluster);
        if (one->component[0]) put(&out, " k:Component=\"%s\"", one->component);
        put(&out, ">\n    <Type>%s</Type>\n    <Quantity>%ld</Quantity>\n", one->type, one->quantity);
        put(&out, "    <Usage>%s</Usage>\n", USAGE[!!one->optional]);
        put(&out, "    <Negotiability>%s</Negotiability>\n", NEGOTIABILITY[!!one->fixed]);
        put(&out, "    <Status>%s</Status>\n  </Resource>\n", STATUS[one->status]);
    }
    put(&out, "</NT>\n");
    return out.room ? (int)(out.at - data) : fail("the template is too large");
}

/* Making, changing, deciding. */

void NT_Create(NT *nt, const char *agreement_id, enum NT_Side initiator, const char *source, const char *dest) {
    memset(nt, 0, sizeof *nt);
    snprintf(nt->agreement_id, sizeof nt->agreement_id, "%s", agreement_id);
    snprintf(nt->source, sizeof nt->source, "%s", source);
    snprintf(nt->dest, sizeof nt->dest, "%s", dest);
    nt->initiator = initiator;
}

NT_Resource *NT_Add(NT *nt, const char *type, long quantity) {
    if (nt->resources == NT_MOST_RESOURCES) return NULL;
    NT_Resource *one = &nt->resource[nt->resources++];
    memset(one, 0, sizeof *one);
    snprintf(one->type, sizeof one->type, "%s", type);
    one->quantity = quantity;
    return one;
}

void NT_Say(NT *nt, enum NT_Status status, const char *reason) {
    nt->status = status;
    nt->answer_within = 0;
    snprintf(nt->reason, sizeof nt->reason, "%s", reason ? reason : "");
    for (int i = 0; i < nt->resources; i++)
        if (nt->resource[i].status != NT_REJECTED || status > NT_CONSUMED) nt->resource[i].status = status;
}

long NT_Quantity(const NT *nt, const char *type) {
    long sum = 0;
    for (int i = 0; i < nt->resources; i++)
        if (!strcmp(nt->resource[i].type, type) && nt->resource[i].status != NT_REJECTED) sum += nt->resource[i].quantity;
    return sum;
}

int NT_Decide(const NT *offer, NT_Taking taking, void *context, NT *answer) {
    int changed = 0, left = 0;
    *answer = *offer;
    for (int i = 0; i < offer->resources; i++) {
        NT_Resource *one = &answer->resource[i];
        if (one->status == NT_REJECTED) continue;
        long many = taking(one->type, one->quantity, context);
        if (many > one->quantity) many = one->quantity;
        if (many != one->quantity && (one->fixed || many < one->minimum)) many = 0;
        if (many < 1 && !one->optional) {
            NT_Say(answer, NT_REJECTED, "a required resource cannot be taken");
            return 0;
        }
        if (many < 1)
            one->status = NT_REJECTED;
        else
            left++;
        if (many >= 1 && many != one->quantity) changed = 1;
        if (many >= 1) one->quantity = many;
    }
    if (!left)
        NT_Say(answer, NT_REJECTED, "nothing that is offered can be taken");
    else
        NT_Say(answer, changed ? NT_NEGOTIATION : NT_ACCEPTED, "");
    if (answer->status == NT_NEGOTIATION) {
        answer->round = 0;
        for (int i = 0; i < answer->resources; i++) answer->resource[i].minimum = answer->resource[i].maximum = 0;
    }
    return 0;
}

/* Sockets. */

static int send_all(int connection, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(connection, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return fail("cannot send: %s", strerror(errno));
        data += sent;
        size -= (size_t)sent;
    }
    return 0;
}

/* Returns 1, or 0 when the peer has closed before the first byte. */
static int receive_all(int connection, char *data, size_t size) {
    size_t got = 0;
    while (got < size) {
        ssize_t more = recv(connection, data + got, size - got, 0);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return fail("cannot receive: %s", strerror(errno));
        if (!more) return got ? fail("the connection ended in a frame") : 0;
        got += (size_t)more;
    }
    return 1;
}

static int send_frame(int connection, const char *data, size_t size) {
    char header[HEADER + 1];
    snprintf(header, sizeof header, "%08u\n", (unsigned)size % 100000000U);
    return send_all(connection, header, HEADER) || send_all(connection, data, size) ? -1 : 0;
}

int NT_Connect(const char *host, int port, const char *token) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found, *one;
    char service[12], greeting[256];
    int connection = -1, yes = 1;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(host, service, &wanted, &found)) return fail("%s is not known", host);
    for (one = found; one && connection < 0; one = one->ai_next) {
        connection = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
        if (connection >= 0 && connect(connection, one->ai_addr, one->ai_addrlen)) {
            close(connection);
            connection = -1;
        }
    }
    freeaddrinfo(found);
    if (connection < 0) return fail("cannot connect to %s: %s", host, strerror(errno));
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (token) {
        int size = snprintf(greeting, sizeof greeting, "KOALA-NT 1 %s", token);
        if (size >= (int)sizeof greeting || send_frame(connection, greeting, (size_t)size)) {
            close(connection);
            return fail("cannot show the token");
        }
    }
    return connection;
}

int NT_ConnectUnix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int connection;
    if (strlen(path) >= sizeof address.sun_path) return fail("the path is too long");
    strcpy(address.sun_path, path);
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connection >= 0 && !connect(connection, (struct sockaddr *)&address, sizeof address)) return connection;
    fail("cannot connect to %s: %s", path, strerror(errno));
    if (connection >= 0) close(connection);
    return -1;
}

int NT_Accept(int listening) {
    int connection = accept(listening, NULL, NULL);
    return connection < 0 ? fail("cannot accept: %s", strerror(errno)) : connection;
}

int NT_Close(int connection) { return close(connection); }

int NT_Send(int connection, const NT *nt) {
    static __thread char data[NT_LARGEST + 1];
    int size = NT_Write(nt, data, sizeof data);
    return size < 0 ? -1 : send_frame(connection, data, (size_t)size);
}

int NT_Recv(int connection, NT *nt) {
    static __thread char data[NT_LARGEST];
    char header[HEADER + 1] = {0};
    int got = receive_all(connection, header, HEADER);
    if (got < 1) return got;
    if (strspn(header, DIGITS) != HEADER - 1 || header[HEADER - 1] != '\n') return fail("this is no frame");
    long size = atol(header);
    if (size < 1 || size > NT_LARGEST) return fail("a frame of %ld bytes is refused", size);
    got = receive_all(connection, data, (size_t)size);
    if (got < 1) return got < 0 ? -1 : fail("the connection ended in a frame");
    return NT_Read(data, (size_t)size, nt) ? -1 : 1;
}

/* The state machine: the same table as in koala_adapter/negotiation/serviceside/states.py, which says what it means. */

enum Message { OFFER, REPEATED, UNFIT, ACCEPT, COMMIT, CONSUME, MISMATCH, REJECT, WITHDRAW, EXPIRE, COMPLAIN };

static const char STATES[] = "noqgaAcrwxlb"; /* as in NT_State */
static const char *const HEARD[] = {
    /* offer, repeated, unfit, accept, commit, consume, mismatch, reject, withdraw, expire, error: state and answer */
    "q-n-nRnXnXnXnXn-n-n-n-", "q-o=rRa-bEbEbEr-w-x-b-", "bEq-bEbEbEbEbEr-w-x-b-", "bEg=bEbEA-c-bEr-w-x-b-",
    "bEa-bEa-bEbEbEr-w-x-b-", "bEA-bEA=A-c-bEr-w-x-b-", "c-c-c-c=c-c-c-r-w-x-b-", "rRrRrRrRrRrRrRr-r-r-r-",
    "wWwWwWwWwWwWwWw-w-w-w-", "xXxXxXxXxXxXxXx-x-x-x-", "lWlWlWlWlWlWlWl-l-l-l-", "bEbEbEbEbEbEbEb-b-b-b-",
};
static const enum Message MESSAGE[] = {OFFER, ACCEPT, COMMIT, CONSUME, REJECT, WITHDRAW, EXPIRE, COMPLAIN};
/* What may be said: offer, accept, commit, consume, reject, withdraw, expire, error; and the state that follows. */
static const char *const SAYABLE[] = {
    "o-------", "-----w--", "og--rw--", "--------", "--A--w--", "---c-w--",
};

static int has_ended(const NT_Negotiation *one) { return one->state >= NT_IS_CONSUMED; }

static enum NT_State state_of(char letter) { return (enum NT_State)(strchr(STATES, letter) - STATES); }

static NT_Negotiation *find(NT_Endpoint *endpoint, const NT *nt) {
    for (int i = 0; i < NT_MOST_KEPT; i++) {
        NT_Negotiation *one = &endpoint->kept[i];
        if (one->touched && one->standing.initiator == nt->initiator &&
            !strcmp(one->standing.agreement_id, nt->agreement_id))
            return one;
    }
    return NULL;
}

static int number_open(const NT_Endpoint *endpoint) {
    int count = 0;
    for (int i = 0; i < NT_MOST_KEPT; i++) count += endpoint->kept[i].touched && !has_ended(&endpoint->kept[i]);
    return count;
}

/* Returns a place for a new negotiation: a free one, or that of the one that ended first. */
static NT_Negotiation *place_for(NT_Endpoint *endpoint, const NT *nt) {
    NT_Negotiation *best = NULL;
    for (int i = 0; i < NT_MOST_KEPT; i++) {
        NT_Negotiation *one = &endpoint->kept[i];
        if ((!one->touched || has_ended(one)) && (!best || one->touched < best->touched)) best = one;
    }
    if (!best) return NULL;
    memset(best, 0, sizeof *best);
    best->standing = *nt;
    best->touched = ++endpoint->touches;
    return best;
}

static const NT_Resource *same_resource(const NT *in, const NT_Resource *one) {
    for (int i = 0; i < in->resources; i++)
        if (!strcmp(in->resource[i].type, one->type) && !strcmp(in->resource[i].cluster, one->cluster) &&
            !strcmp(in->resource[i].component, one->component))
            return &in->resource[i];
    return NULL;
}

static int declined(const NT_Resource *one) { return one->status == NT_REJECTED; }

static int offers_anything(const NT *nt) {
    for (int i = 0; i < nt->resources; i++)
        if (!declined(&nt->resource[i])) return 1;
    return 0;
}

static int same_resources(const NT *before, const NT *after) {
    for (int i = 0; i < after->resources; i++)
        if (!same_resource(before, &after->resource[i])) return 0;
    return before->resources == after->resources;
}

static int same_quantities(const NT *before, const NT *after) {
    int left = 0;
    for (int i = 0; i < after->resources; i++) {
        const NT_Resource *one = &after->resource[i], *was = same_resource(before, one);
        if (declined(one)) continue;
        if (!was || declined(was) || was->quantity != one->quantity) return 0;
        left++;
    }
    for (int i = 0; i < before->resources; i++) left -= !declined(&before->resource[i]);
    return !left;
}

static const char *problem_of_change(const NT_Resource *before, const NT_Resource *after) {
    if (before->optional != after->optional) return "the usage of a resource stays as it was";
    if (declined(before) && !declined(after)) return "what was declined stays so";
    if (before->fixed) return after->fixed && after->quantity == before->quantity ? NULL : "a resource is fixed";
    if (!declined(after) && (after->quantity < before->minimum || (before->maximum && after->quantity > before->maximum)))
        return "a quantity is outside the bounds of the offer";
    return NULL;
}

static const char *problem_of_counter(const NT *before, const NT *after) {
    const char *problem = NULL;
    if (!offers_anything(after)) return "an offer in which everything is declined is none";
    if (after->direction && after->direction != before->direction) return "the direction of an offer stays as it was";
    if (after->obligation && after->obligation != before->obligation) return "the obligation of an offer stays as it was";
    if (!same_resources(before, after)) return "a counter-offer has the resources of the offer: what is not wanted is declined";
    for (int i = 0; i < after->resources && !problem; i++)
        problem = problem_of_change(same_resource(before, &after->resource[i]), &after->resource[i]);
    return problem;
}

static const char *problem_of_closing(const NT *standing, const NT *closing) {
    if (!same_resources(standing, closing)) return "it has other resources than what stands";
    for (int i = 0; i < closing->resources; i++) {
        const NT_Resource *one = &closing->resource[i], *before = same_resource(standing, one);
        if (one->quantity != before->quantity) return "it has other quantities than what stands";
        if (declined(before) && !declined(one)) return "something in it was declined";
        if (declined(one) && !declined(before) && !(before->optional && closing->status == NT_ACCEPTED))
            return "something in it cannot be declined here";
    }
    return offers_anything(closing) ? NULL : "nothing is left in it";
}

/* Fills in what a peer that only knows the published form has left out, as it was before. */
static void complete(NT *nt, const NT *before) {
    int unique = 1;
    for (int i = 0; i < before->resources; i++)
        for (int j = 0; j < i; j++) unique &= !!strcmp(before->resource[i].type, before->resource[j].type);
    for (int i = 0; unique && i < nt->resources; i++)
        for (int j = 0; j < before->resources; j++) {
            NT_Resource *one = &nt->resource[i];
            if (strcmp(one->type, before->resource[j].type)) continue;
            if (!one->cluster[0]) memcpy(one->cluster, before->resource[j].cluster, sizeof one->cluster);
            if (!one->component[0]) memcpy(one->component, before->resource[j].component, sizeof one->component);
        }
    if (!nt->direction) nt->direction = before->direction;
    if (!nt->obligation) nt->obligation = before->obligation;
}

static enum Message classify_first(const NT_Endpoint *endpoint, const NT *nt, const char **problem) {
    *problem = "there is no such negotiation (any more)";
    if (nt->status != NT_NEGOTIATION) return MESSAGE[nt->status];
    *problem = nt->initiator == endpoint->side     ? "this side has not begun this negotiation"
               : nt->round > 1                     ? "the first offer has round 1"
               : !offers_anything(nt)              ? "an offer in which everything is declined is none"
               : number_open(endpoint) >= NT_MOST_OPEN ? "too many negotiations are open already"
                                                   : NULL;
    return *problem ? UNFIT : OFFER;
}

static enum Message classify_offer(const NT *nt, const NT_Negotiation *known, const char **problem) {
    if (!nt->round && known->state != NT_IS_OFFERED && same_quantities(&known->standing, nt)) return REPEATED;
    if (nt->round && nt->round <= known->round) return REPEATED;
    *problem = nt->round && nt->round != known->round + 1 ? "its round does not follow the last one"
               : known->round >= NT_MOST_ROUNDS           ? "no agreement within so many offers"
                                                          : problem_of_counter(&known->standing, nt);
    if (*problem) return UNFIT;
    *problem = "an offer does not follow";
    return OFFER;
}

/* What is wrong with a message that may not come; of those that end a negotiation, why it has, if they do not say. */
static const char *const UNEXPLAINED[] = {"it does not follow",       "it does not follow",        "it does not follow",
                                          "it does not follow",       "the peer has rejected it",  "the peer has withdrawn it",
                                          "the peer has let it expire", "the peer reports an error"};

static enum Message classify(const NT *nt, const NT_Negotiation *known, const char **problem) {
    const char *found = NULL;
    if (nt->status == NT_NEGOTIATION) return classify_offer(nt, known, problem);
    if (nt->status == NT_ACCEPTED && known->state == NT_IS_OFFERED)
        found = problem_of_closing(&known->standing, nt);
    else if (nt->status <= NT_CONSUMED && !same_quantities(&known->standing, nt))
        found = "it is not what stands";
    if (nt->status <= NT_COMMITTED && nt->round && nt->round != known->round) found = "its round is not the last one";
    *problem = found ? found : UNEXPLAINED[nt->status];
    return found ? MISMATCH : MESSAGE[nt->status];
}

static void move(NT_Endpoint *endpoint, NT_Negotiation *known, enum NT_State state, long long now, long asked_within) {
    long within = NT_ANSWER_WITHIN;
    known->state = state;
    if (state == NT_IS_ASKED) {
        within = asked_within ? asked_within : within;
        within = within > NT_LONGEST_ANSWER ? NT_LONGEST_ANSWER : within;
    } else if (state == NT_IS_OFFERED && known->standing.answer_within)
        within = known->standing.answer_within;
    known->deadline = state >= NT_IS_OFFERED && state <= NT_IS_ACCEPTED ? now + within : 0;
    known->touched = ++endpoint->touches;
}

static enum NT_Status answered(char letter) {
    return letter == 'R' ? NT_REJECTED : letter == 'X' ? NT_EXPIRED : letter == 'W' ? NT_WITHDRAWN : NT_ERROR;
}

int NT_Hear(NT_Endpoint *endpoint, const NT *heard, long long now, NT_Negotiation **happened, NT *answer) {
    static __thread NT nt;
    NT_Negotiation *known = find(endpoint, heard);
    const char *problem = NULL, *cell;
    enum Message message;
    enum NT_State before = known ? known->state : NT_IS_NEW, after;
    nt = *heard;
    *happened = NULL;
    if (known) complete(&nt, &known->standing);
    message = known ? classify(&nt, known, &problem) : classify_first(endpoint, &nt, &problem);
    cell = HEARD[before] + 2 * message;
    after = state_of(cell[0]);
    if (!known && after != NT_IS_NEW && !(known = place_for(endpoint, &nt))) return 0;
    if (after != before) {
        if (after <= NT_IS_CONSUMED) known->standing = nt;
        known->round += message == OFFER;
        move(endpoint, known, after, now, nt.answer_within);
        snprintf(known->reason, sizeof known->reason, "%s", nt.reason[0] ? nt.reason : problem ? problem : "");
        *happened = known;
    }
    if (cell[1] == '-' || (cell[1] == '=' && !(known && known->has_said))) return 0;
    if (known && known->has_said && (cell[1] == '=' || known->said.status == answered(cell[1]))) {
        *answer = known->said;
        return 1;
    }
    *answer = known ? known->standing : nt;
    NT_Say(answer, answered(cell[1]), known && before > NT_IS_CONSUMED ? known->reason : problem);
    answer->round = known ? known->round : 0;
    if (known) {
        known->said = *answer;
        known->has_said = 1;
    }
    return 1;
}

int NT_Tell(NT_Endpoint *endpoint, NT *said, long long now) {
    NT_Negotiation *known = find(endpoint, said);
    enum NT_State state = known ? known->state : NT_IS_NEW;
    char letter = state <= NT_IS_AGREED ? SAYABLE[state][said->status] : '-';
    const char *problem = NULL;
    if (check(said)) return -1;
    if (letter == '-') return fail("that cannot be said in %s now", said->agreement_id);
    if (!known)
        problem = said->initiator != endpoint->side           ? "the other side is the initiator"
                  : number_open(endpoint) >= NT_MOST_OPEN ? "too many negotiations are open"
                                                              : NULL;
    else if (said->status == NT_NEGOTIATION)
        problem = known->round >= NT_MOST_ROUNDS ? "there were too many offers: accept or reject"
                                                 : problem_of_counter(&known->standing, said);
    else if (said->status == NT_ACCEPTED)
        problem = problem_of_closing(&known->standing, said);
    else if (said->status <= NT_CONSUMED && !same_quantities(&known->standing, said))
        problem = "it is not what was accepted";
    if (!problem && !known && !(known = place_for(endpoint, said))) problem = "too many negotiations are open";
    if (problem) return fail("%s: %s", said->agreement_id, problem);
    if (said->status == NT_NEGOTIATION) {
        known->round++;
        if (!said->answer_within) said->answer_within = NT_ANSWER_WITHIN;
    }
    said->round = known->round;
    if (said->status <= NT_CONSUMED) known->standing = *said;
    move(endpoint, known, state_of(letter), now, 0);
    known->said = *said;
    known->has_said = 1;
    return 0;
}

NT_Negotiation *NT_Overdue(NT_Endpoint *endpoint, long long now, NT *said) {
    for (int i = 0; i < NT_MOST_KEPT; i++) {
        NT_Negotiation *one = &endpoint->kept[i];
        if (!one->touched || !one->deadline || one->deadline > now) continue;
        const char *reason = one->state == NT_IS_OFFERED ? "no answer in time" : "not settled in time";
        snprintf(one->reason, sizeof one->reason, "%s", reason);
        move(endpoint, one, NT_IS_EXPIRED, now, 0);
        one->said = one->standing;
        NT_Say(&one->said, NT_EXPIRED, reason);
        one->has_said = 1;
        *said = one->said;
        return one;
    }
    return NULL;
}

long long NT_Deadline(const NT_Endpoint *endpoint) {
    long long first = 0;
    for (int i = 0; i < NT_MOST_KEPT; i++) {
        long long one = endpoint->kept[i].touched ? endpoint->kept[i].deadline : 0;
        if (one && (!first || one < first)) first = one;
    }
    return first;
}

NT_Negotiation *NT_Lose(NT_Endpoint *endpoint) {
    for (int i = 0; i < NT_MOST_KEPT; i++) {
        NT_Negotiation *one = &endpoint->kept[i];
        if (!one->touched) continue;
        if (one->state != NT_IS_OFFERED && one->state != NT_IS_ASKED && one->state != NT_IS_ACCEPTED) continue;
        move(endpoint, one, NT_IS_LOST, 0, 0);
        snprintf(one->reason, sizeof one->reason, "the connection ended");
        return one;
    }
    return NULL;
}

int NT_Again(const NT_Endpoint *endpoint, int place, NT *said) {
    static const enum NT_Status again[] = {NT_NEGOTIATION, NT_NEGOTIATION, NT_NEGOTIATION, NT_ACCEPTED,
                                           NT_NEGOTIATION, NT_COMMITTED,   NT_CONSUMED,    NT_REJECTED,
                                           NT_WITHDRAWN,   NT_EXPIRED,     NT_NEGOTIATION, NT_ERROR};
    const NT_Negotiation *one = &endpoint->kept[place];
    int own_offer = one->state == NT_IS_OFFERED && one->round == 1 && one->standing.initiator == endpoint->side;
    if (!one->touched || !one->has_said) return 0;
    if (!own_offer && (again[one->state] == NT_NEGOTIATION || again[one->state] != one->said.status)) return 0;
    *said = one->said;
    return 1;
}
